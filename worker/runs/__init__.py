"""Submits runs: finds what a configuration names, checks it, stores and queues the run; stops and resumes it."""
