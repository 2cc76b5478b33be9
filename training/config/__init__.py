"""Declares the settings of a run, reads and writes them, and derives the configuration of DeepSpeed and FSDP. No torch."""
