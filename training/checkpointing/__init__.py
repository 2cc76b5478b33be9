"""Saves checkpoints: copies their state to host memory, and writes it while training continues."""
