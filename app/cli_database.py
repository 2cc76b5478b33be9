"""Making sure that there is a database before a command reads it."""

from worker import database


def ready() -> None:
    """Creates the tables where there are none yet. One that has tables is left alone: `lathe up` brings it up to date.

    Raises:
        SettingsError: the data folder cannot be made.
        OperationalError: the database does not answer.
    """
    if not database.has_tables():
        database.migrate()
