"""Routes of the REST API by subject, and its description."""
