"""docs/configuration.md, written from RunConfig: `python -m training.reference`."""

from pathlib import Path

from training.config import Group
from training.fields import Setting, settings

TARGET = Path(__file__).resolve().parent.parent / "docs" / "configuration.md"

INTRODUCTION = """\
# Settings of a run

Written by `python -m training.reference` from `training/config.py`: change that file, then run this command.

The form, the command line and the YAML file take the same settings under the same names. A file holds
`setting: value` lines; what it leaves out keeps its default. A flag stands in for the file's value:
`lathe run quickstart.yaml --learning-rate 0.0001 --lora-r 8`.

Where a setting takes a share or a number of steps, a value below 1 is a share of the run and a whole number
from 1 up is a number of steps.
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
    return f"| {name} | {item.sentence.replace('|', chr(92) + '|')} | {_takes(item)} | {_default(item)} |"


def _takes(item: Setting) -> str:
    if item.kind == "choice":
        return ", ".join(f"`{choice}`" for choice in item.choices)
    words = {"text": "text", "integer": "a whole number", "number": "a number", "boolean": "`true` or `false`"}
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
