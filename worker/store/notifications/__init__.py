"""Notifications in the database: channels, what has to be sent, and preferences."""
