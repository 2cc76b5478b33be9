"""Models that a worker serves: what to load, and the processes that do."""
