"""Numbers, runs and data sets as text, for pages and commands. Pure."""
