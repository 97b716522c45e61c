"""`cluster=slurm`: the run is a batch job of plain sbatch and srun; nothing of it depends on Slurm's accounting."""

from runner.clusters.slurm.cluster import Slurm

__all__ = ["Slurm"]
