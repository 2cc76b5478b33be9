"""`python -m benchmarks.matrix`: every task with every method and strategy, really run."""
