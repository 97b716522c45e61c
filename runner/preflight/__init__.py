"""A run checked against itself, its data and this machine, before any rank starts: all problems at once."""
