"""What several commands take: options, types, and the order in which a group lists its commands."""

from pathlib import Path

import click


class Group(click.Group):
    """Commands in the order in which a person meets them, not the alphabet's."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(self.commands)


json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")
count_type = click.IntRange(1, 100_000)
path_type = click.Path(path_type=Path)
