"""The producer: decides which episodes are played, where, and which train step consumes them."""
