"""The producer: who generates what, when, for which train step."""
