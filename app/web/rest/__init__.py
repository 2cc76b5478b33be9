"""Routes of the REST API by subject, and its description.

An error that a route raises is answered with the status of its class (errors.py); a value that its user got wrong is a 422.
"""
