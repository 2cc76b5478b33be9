"""Loads the model and the tokenizer, adds the adapter of the method, and chooses attention kernels."""
