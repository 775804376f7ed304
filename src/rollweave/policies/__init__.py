"""What a policy is made of: a model, its tokenizer and the way a conversation becomes tokens."""
