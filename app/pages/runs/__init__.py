"""The page Runs, at /: the history and the queue."""
