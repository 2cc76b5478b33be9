"""Backups: a whole installation as one file, made while it runs, and restored into an empty data folder and database."""
