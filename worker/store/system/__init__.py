"""The queries of machines and of the database itself."""
