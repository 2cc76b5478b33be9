"""Commands that queue, list, follow, change and export runs."""
