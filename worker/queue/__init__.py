"""Starts queued runs in order, and requeues lost ones."""
