"""torch's FSDP2 (`fully_shard`) under accelerate."""
