"""Compares `lathe forecast --solve max_length` with trying: real runs on CPU under a memory limit."""
