"""The parts of a policy: a model, its tokenizer, and the way in which a conversation becomes tokens."""
