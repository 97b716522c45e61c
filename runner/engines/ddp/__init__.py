"""torch DistributedDataParallel under accelerate."""
