"""Whole runs as one file: written, and imported."""
