"""Measures the queue and the storage of metrics."""
