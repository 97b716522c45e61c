"""Rows: reading them, checking them, turning them into features that are written once."""
