"""The flags of `lathe run`: one for every setting of RunConfig, imported only when the command is used."""

from typing import Any

import click

from app.cli.options import Command
from app.format.numbers import plain


class RunCommand(Command):
    """A command with a flag for every setting; the used flags arrive as the mapping `overrides` (setting name to text).

    The values stay text and are checked with the file's, so that flags and files give the same messages.
    """

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), *setting_options()]

    def invoke(self, ctx: click.Context) -> Any:
        names = {option.name for option in setting_options()}
        given = {name: ctx.params.pop(name) for name in list(ctx.params) if name in names}
        ctx.params["overrides"] = {name: _text(value) for name, value in given.items() if value not in (None, ())}
        return super().invoke(ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The command's own options, then the settings under the headings of the form."""
        own = [param for param in super().get_params(ctx) if isinstance(param, click.Option)]
        records = [record for option in own if (record := option.get_help_record(ctx))]
        with formatter.section("Options"):
            formatter.write_dl(records)
        for heading, rows in _help_by_group().items():
            with formatter.section(heading):
                formatter.write_dl(rows)


def setting_options() -> list[click.Option]:
    """A click option per setting, in the order of the form: `lora_r` is `--lora-r`. `--data` may be repeated."""
    from training.config.data_sets import FIELDS
    from training.config.fields import settings

    return [
        click.Option([_flag(name), name], metavar=_metavar(item), multiple=name in FIELDS)
        for name, item in settings().items()
    ]


def underscores_too(token: str) -> str:
    """Accepts a flag as spelled in the file: --lora_r for --lora-r."""
    return token.replace("_", "-")


def settings_by_any_name(token: str) -> str:
    """Also accepts common short names: --micro-batch for --micro-batch-size."""
    return {
        "micro-batch": "micro-batch-size",
        "offload-params": "offload-param",
        "accumulation": "gradient-accumulation-steps",
    }.get(underscores_too(token), underscores_too(token))


def _text(value: Any) -> Any:
    """The value of a flag; of a flag that may be repeated a list, unless its only value is a JSON list."""
    return value[0] if isinstance(value, tuple) and len(value) == 1 and value[0].lstrip().startswith("[") else value


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _metavar(item: Any) -> str:
    if item.kind == "boolean":
        return "[true|false]"
    return "CHOICE" if item.kind == "choice" else item.kind.upper()


def _help_by_group() -> dict[str, list[tuple[str, str]]]:
    from training.config.fields import settings

    groups: dict[str, list[tuple[str, str]]] = {}
    for name, item in settings().items():
        groups.setdefault(item.group.value, []).append((f"{_flag(name)} {_metavar(item)}", _help(item)))
    return groups


def _help(item: Any) -> str:
    facts = [", ".join(item.choices), item.bounds]
    if item.default is not None and item.default != "":
        facts.append(f"default {plain(item.default)}")
    details = "; ".join(fact for fact in facts if fact)
    return f"{item.sentence} [{details}]" if details else item.sentence
