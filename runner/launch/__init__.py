"""Starting ranks and watching them.

runner (light: no torch) → host (has imported the libraries) → job (torch elastic's agent) → ranks.
Each ends when its parent does, also by kill -9, so no rank outlives its run.
"""
