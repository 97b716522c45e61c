"""The verbs of `python -m runner`: one module each, with a `main(arguments)` that returns the exit status."""
