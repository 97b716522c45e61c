"""Engines: who wraps the model and takes the optimizer step. One folder each; nobody outside asks which one it is."""
