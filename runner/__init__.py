"""A declarative runner for fine-tuning experiments under accelerate and DeepSpeed."""

__version__ = "0.1.0"
