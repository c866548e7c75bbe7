"""The nouns of the system and their state machines. Imports nothing of ours."""
