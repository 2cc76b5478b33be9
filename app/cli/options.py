"""Options and types that several commands share, and groups of commands."""

from pathlib import Path
from typing import Any

import click

from training.printable import change_output, printable


class Group(click.Group):
    """A group that lists its commands in the order of their definition."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the command line; nothing that it prints can control the terminal (app/cli/terminal.py)."""
        change_output(printable)
        return super().main(*args, **kwargs)


class ConfigFile(click.Path):
    """A configuration file: absolute, relative to the current folder, or relative to the installation (static/starter)."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from worker.allowed_paths import find_path

        return find_path(str(value)) or super().convert(value, param, ctx)


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
count_type = click.IntRange(1, 100_000)
path_type = click.Path(path_type=Path)
config_type = ConfigFile(path_type=Path)


def ready() -> None:
    """Creates the tables of an empty database; `lathe up` upgrades existing tables.

    Raises:
        SettingsError: the data folder cannot be created.
        NewerDatabase: a newer version of Lathe has changed the tables.
        OperationalError: the database is unreachable.
    """
    from worker.store import database

    if not database.has_tables():
        database.migrate()
