"""A comparison of runs: the document for `--json`, REST and the page Compare, and its Markdown, CSV and plain text."""
