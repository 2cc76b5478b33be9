"""The command `lathe`: each command parses its options and calls the package that does the work."""
