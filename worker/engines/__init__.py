"""Engines: what places runs on machines. One interface (engine.py) and a package for each engine."""
