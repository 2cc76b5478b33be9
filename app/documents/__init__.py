"""Runs, data sets, forecasts and comparisons as dictionaries: what --json prints and REST returns."""
