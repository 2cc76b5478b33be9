"""Measures `worker.diagnosis` on logs whose cause is known."""
