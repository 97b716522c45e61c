"""What a finished run is good for: its weights as a `from_pretrained` folder, its predictions for new rows."""
