"""REST routes of data sets."""
