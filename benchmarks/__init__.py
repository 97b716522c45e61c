"""What the runner costs and gains, as ratios against plain scripts under `accelerate launch`:
`python -m benchmarks`.
"""
