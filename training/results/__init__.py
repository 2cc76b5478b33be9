"""Saves the result after the last step, summarizes the run, answers held-out rows, merges and converts."""
