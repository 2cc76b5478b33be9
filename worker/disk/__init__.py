"""Disk use by kind, what can be freed, and the retention rules."""
