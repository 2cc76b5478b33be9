"""Rows of data files: which format a file has, and readers for each."""
