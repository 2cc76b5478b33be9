"""The command `lathe`: each command parses its options and calls the package that does the work.

A command prints each error that its work raises, and exits with 1 (`Command` in options.py); no function here names them.
"""
