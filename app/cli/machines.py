"""`lathe machines`: machines that were put aside after failures."""

import click

from app.cli.options import Group


@click.group(cls=Group)
def machines() -> None:
    """Take back machines that were put aside after failures.

    `lathe system` lists all machines.
    """


@machines.command()
@click.argument("name")
def use(name: str) -> None:
    """Let runs on several machines use NAME again."""
    from app.cli.system import use_machine

    use_machine(name)
    click.echo(f"Runs on several machines use {name} again.")
