"""Measures how large an installation may be, and simulates a large cluster."""
