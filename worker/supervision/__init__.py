"""Runs one attempt: leases, launches, monitors and closes it."""
