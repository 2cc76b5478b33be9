"""The plots of runs, and what is new in a live run."""
