"""Engines: what places runs on machines. One interface (registry.py) and a package for each engine."""
