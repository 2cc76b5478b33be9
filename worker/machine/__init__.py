"""This machine: its GPUs, processes and load, and programs that run with limits."""
