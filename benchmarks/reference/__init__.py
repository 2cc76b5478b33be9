"""`python -m benchmarks.reference`: the numbers of real runs compared with plain loops."""
