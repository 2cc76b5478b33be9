"""`python -m benchmarks.chaos`: injects random faults into an installation and reports damage."""
