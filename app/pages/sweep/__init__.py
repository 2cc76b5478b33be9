"""The page Sweep: progress, results and plots of one sweep."""
