"""What does a reward function elsewhere cost and lose when its server fails?"""
