"""`lathe evaluate` and `lathe evaluations`."""
