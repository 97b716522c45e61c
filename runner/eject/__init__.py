"""A run as a standalone folder: one training script, its files, and no runner."""
