"""Sweeps: which runs there are, their plan before the start, what continues, and the results."""
