"""Reads data files: detects the format, converts rows to examples, and reports problems. No torch."""
