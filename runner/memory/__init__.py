"""What a run will need, per rank and per host, before anything is started. Importing it costs nothing."""
