"""Submits runs (checks, stores, queues them) and delivers their results."""
