"""The database: its tables, and every query on them."""
