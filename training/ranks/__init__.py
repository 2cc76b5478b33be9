"""The processes of a run: starting, sequence parallelism, stopping, and the shards of the model."""
