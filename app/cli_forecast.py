"""`lathe forecast`: whether a run fits and what would, before anything is queued or downloaded."""

import json
from pathlib import Path
from typing import Any

import click

from app import forecasts, text
from app.cli_database import ready
from training.cards import Card
from training.config import RunConfig
from training.config_file import read_config
from training.fields import parse
from training.memory import MOMENTS
from worker import forecasting, run_data
from worker.forecasting import Found


def show(
    path: Path | None,
    overrides: dict[str, Any],
    *,
    gpu: str | None,
    gpus: int | None,
    host_memory: float | None,
    simulate: bool,
    as_json: bool,
) -> None:
    """Prints what a run takes on each rank, whether that fits, and the configurations that do.

    Raises:
        ConfigError: a setting is wrong or cannot go with another, no such GPU is known, or the model's shape is not.
    """
    given = {"data": "none"} | overrides
    config = forecasts.on_gpus(read_config(path, given) if path else parse(given), gpus, overrides)
    if run_data.DATASET_ID.fullmatch(config.data):
        ready()  # its tokens may be counted
    found, card = forecasts.foresee(config, gpu, host_memory)
    simulated = forecasts.simulate(config, found, card) if simulate else None
    if as_json:
        document = forecasting.as_document(found)
        click.echo(json.dumps(document | {"simulated": simulated} if simulated else document))
    else:
        click.echo(told(config, found, card) + (in_words(simulated) if simulated else ""))


def told(config: RunConfig, found: Found, card: Card | None) -> str:
    """The answer as a few aligned lines."""
    one = found.forecast
    place = f"{text.plural(config.num_processes, 'GPU')}, {card.label}" if card else "CPU"
    share = text.percent(one.trainable / max(one.total, 1), 4)
    lines = [
        f"{'Fits' if one.fits else 'Does not fit'}: {place}, {config.method}, {config.strategy}, "
        f"{config.micro_batch_size} x {one.batch.length:,} tokens.",
        *one.reasons,
        "",
        text.table(_parts(found)),
        "",
        f"{one.trainable:,} of {one.total:,} parameters train ({share}). The peak is at {MOMENTS[one.moment]}.",
        *found.notes,
    ]
    if found.advice:
        lines += [
            "",
            "What fits, the fastest first:" if not one.fits else "What else fits, the fastest first:",
            text.table(_ways(found)),
        ]
    elif not one.fits:
        lines += ["", "Nothing that was tried fits: take more or larger GPUs, a shorter max_length or a smaller model."]
    return "\n".join(lines)


def in_words(done: dict[str, Any]) -> str:
    """What the simulation found, in lines: its peak, what it is made of, and where."""
    besides = done.get("besides_bytes", 0)
    rows = [[name.capitalize(), text.byte_size(amount)] for name, amount in done["parts"].items() if amount]
    rows += [["Context and slack", text.byte_size(besides)]] if besides else []
    verdict = {True: "It fits.", False: "It does not fit.", None: ""}[done.get("fits")]
    rows.append(["Together", text.byte_size(done["peak_bytes"] + besides)])
    where = (
        f"{done['module'] or 'the model'}, {done['function']} ({done['line']})" if done["line"] else done["operator"]
    )
    return f"\n\nA simulated step. {verdict} The peak is in the {done['phase']} pass of {where}.\n\n{text.table(rows)}"


def _parts(found: Found) -> list[list[str]]:
    one = found.forecast
    rows = [[name.capitalize(), text.byte_size(amount)] for name, amount in one.parts.items()]
    limit = f"of {text.byte_size(one.limit_bytes)}" if one.limit_bytes else ""
    rows = [["On each rank", ""], *rows, ["Together", text.byte_size(one.peak_bytes), limit]]
    host = f"of {text.byte_size(one.host_limit_bytes)}" if one.host_limit_bytes else ""
    if one.host_bytes:
        rows.append(["Host memory, all ranks", text.byte_size(one.host_bytes), host])
    if one.nvme_bytes:
        rows.append(["NVMe, all ranks", text.byte_size(one.nvme_bytes)])
    width = max(len(row) for row in rows)
    return [row + [""] * (width - len(row)) for row in rows]


def _ways(found: Found) -> list[list[str]]:
    rows = [["Speed", "Each rank", "Host", "Settings to change", "Cost"]]
    for one in found.advice:
        changes = ", ".join(f"{name}={value}" for name, value in one.changes.items()) or "none"
        rows.append(
            [
                f"{one.relative_speed:.0%}",
                text.byte_size(one.forecast.peak_bytes),
                text.byte_size(one.forecast.host_bytes),
                changes,
                one.cost,
            ]
        )
    return rows
