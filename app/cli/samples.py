"""The work of `lathe samples`."""

import json
from typing import Any

import click

from app.cli.client import connect, path_of
from app.format import numbers
from training.units import NONE

_WIDTH = 100  # characters of a text


def samples(run_id: str, *, as_json: bool, **wanted: Any) -> None:
    """Prints the samples that a run drew, by prompt."""
    query = {name: value for name, value in wanted.items() if value is not None}
    answer = connect().get(path_of("runs", run_id, "/samples"), **query)
    if as_json:
        click.echo(json.dumps(answer))
    elif not answer["groups"]:
        click.echo(
            "No samples match."
            if answer["steps"]
            else f"Run {run_id} has no samples. Runs of tasks grpo and distill have."
        )
    else:
        click.echo("\n\n".join("\n".join(lines(group, answer["rewards"])) for group in answer["groups"]))
        shown = f"{len(answer['groups']):,} of {numbers.plural(answer['total'], 'prompt', 'prompts')}"
        click.echo(f"\n{shown}; step {answer['steps'][-1]:,} is the last one kept.", err=True)


def lines(group: dict[str, Any], rewards: list[str]) -> list[str]:
    """A prompt, the expected answer, and its samples with their scores as a table; without advantages, a score is the total."""
    compared = any(sample["advantage"] is not None for sample in group["samples"])
    rows = [
        [
            *(_number(sample["scores"].get(name)) for name in rewards),
            *((_number(sample["reward"]), _signed(sample["advantage"])) if compared else ()),
            f"{sample['tokens']:,}{'' if sample['ended'] else ', cut off'}",
            _short(sample["text"]),
        ]
        for sample in group["samples"]
    ]
    file = f" of {group['file']}" if group["file"] else ""
    head = [*rewards, *(("TOTAL", "ADVANTAGE") if compared else ()), "TOKENS", "SAMPLE"]
    return [
        f"Step {group['step']:,}, row {group['row']:,}{file}: {_short(group['prompt'])}",
        *([f"Expected: {_short(group['expected'])}"] if group["expected"] else []),
        numbers.table([head, *rows], right=frozenset(range(len(head) - 1))),
    ]


def _number(value: float | None) -> str:
    return NONE if value is None else f"{value:.4g}"


def _signed(value: float | None) -> str:
    return f"{value:+.3g}" if value else "0"


def _short(text: str) -> str:
    return numbers.shorten(" ".join(text.split()), _WIDTH)
