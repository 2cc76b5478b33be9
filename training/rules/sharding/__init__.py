"""Rules on strategies that shard, offload, and DeepSpeed files."""
