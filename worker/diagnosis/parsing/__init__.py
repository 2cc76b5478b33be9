"""Parts of a log: prefixes of lines, tracebacks and their chains, roles of lines."""
