"""A training step on fake tensors, which finds its peak memory without allocating any."""
