"""Checks of a machine before the first run: devices, driver, packages, memory, disk and services, each with a cure."""
