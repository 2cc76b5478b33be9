"""`python -m tools.references.configuration` writes docs/configuration.md from RunConfig."""

from pathlib import Path

from training.config.applies import APPLIES
from training.config.choices import Group
from training.config.fields import Setting, settings

TARGET = Path(__file__).resolve().parents[2] / "docs" / "configuration.md"

INTRODUCTION = """\
# Settings of a run

`python -m tools.references.configuration` generates this page from `training/config/run_config.py`: change that file, then run
the command.

The form, the command line and YAML files have the same settings with the same names. A YAML file has lines
`setting: value`; other settings keep their defaults. An option on the command line overrides the file:
`lathe run quickstart.yaml --learning-rate 0.0001 --lora-r 8`.

If a setting accepts a share or a number of steps, a value below 1 is a share of the run, and a whole number
from 1 is a number of steps.
"""


def render() -> str:
    """The whole page as Markdown."""
    return "\n".join([INTRODUCTION, *(_section(group) for group in Group)])


def _section(group: Group) -> str:
    rows = [_row(item) for item in settings().values() if item.group is group]
    head = "| setting | what it does | takes | default |\n| --- | --- | --- | --- |"
    return "\n".join([f"## {group.value}", "", head, *rows, ""])


def _row(item: Setting) -> str:
    name = f"`{item.name}`" + (" (advanced)" if item.advanced else "")
    applies = f" Applies to {APPLIES[item.name].words}." if item.name in APPLIES else ""
    sentence = f"{item.sentence}{applies}".replace("|", chr(92) + "|")
    return f"| {name} | {sentence} | {_takes(item)} | {_default(item)} |"


def _takes(item: Setting) -> str:
    if item.kind == "choice":
        return ", ".join(f"`{choice}`" for choice in item.choices)
    words = {"text": "text", "integer": "an integer", "number": "a number", "boolean": "`true` or `false`"}
    return ", ".join(part for part in (words[item.kind], item.bounds) if part)


def _default(item: Setting) -> str:
    if item.required:
        return "none: required"
    if item.default is None or item.default == "":
        return "empty"
    if item.kind == "boolean":
        return f"`{str(item.default).lower()}`"
    return f"`{item.default:g}`" if isinstance(item.default, float) else f"`{item.default}`"


if __name__ == "__main__":
    TARGET.write_text(render(), encoding="utf-8")
