"""Measures the pages: useful paint, requests, bytes and ticks in a real browser, and 50 viewers of one live run."""
