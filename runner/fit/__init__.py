"""What really fits: predictions checked by trials in fresh processes."""
