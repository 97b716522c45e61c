"""What a run will need, per rank and per host, before anything is started. Importing it costs nothing."""

from runner.memory.estimate import MemoryEstimate, estimate, predict_for_record
from runner.memory.workload import Architecture, Buckets, MeasuredLengths, Workload, workload_from_config

__all__ = [
    "Architecture",
    "Buckets",
    "MeasuredLengths",
    "MemoryEstimate",
    "Workload",
    "estimate",
    "predict_for_record",
    "workload_from_config",
]
