"""Runs on the devices of the workers themselves."""
