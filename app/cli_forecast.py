"""`lathe forecast`: whether a run fits and what would, before anything is queued or downloaded."""

import json
from pathlib import Path
from typing import Any

import click

from app import text
from app.cli_database import ready
from training import cards
from training.cards import GIB, Card
from training.config import RunConfig
from training.config_file import read_config
from training.fields import ConfigError, Problem, parse
from training.memory import MOMENTS
from training.model_shape import ModelShape, ShapeError
from training.rules import Machine, check
from worker import devices, forecasting, run_data
from worker.forecasting import Found, RowLengths


def show(
    path: Path | None,
    overrides: dict[str, Any],
    *,
    gpu: str | None,
    gpus: int | None,
    host: float | None,
    as_json: bool,
) -> None:
    """Prints what a run takes on each rank, whether that fits, and the configurations that do.

    Raises:
        ConfigError: a setting is wrong or cannot go with another, no such GPU is known, or the model's shape is not.
    """
    config = configuration(path, overrides, gpus)
    card = chosen_card(gpu)
    refuse(config, card)
    shape = known_shape(config.model)
    rows = _counted(config)
    found = forecasting.foresee(config, shape, card, rows=rows, host_bytes=int(host * GIB) if host else _host(gpu))
    click.echo(json.dumps(forecasting.as_document(found)) if as_json else told(config, found, card))


def configuration(path: Path | None, overrides: dict[str, Any], gpus: int | None) -> RunConfig:
    """The settings; data need not be given, `gpus` means as many processes, and several of those a strategy for several."""
    given: dict[str, Any] = {"data": "none"} | overrides
    if gpus:
        given.setdefault("num_processes", str(gpus))
    config = read_config(path, given) if path else parse(given)
    return forecasting.spread(config, gpus) if gpus and "strategy" not in overrides else config


def chosen_card(gpu: str | None) -> Card | None:
    """The named card, else this machine's own; None for CPU."""
    if gpu is None:
        return forecasting.card_of(devices.machine())
    if gpu.lower() == devices.CPU:
        return None
    try:
        return cards.find_card(gpu)
    except ValueError as error:
        raise ConfigError([Problem("gpu", gpu, str(error))]) from None


def refuse(config: RunConfig, card: Card | None) -> None:
    """Raises ConfigError for settings that could not run at all on such GPUs."""
    count = max(config.num_processes, 1)
    machine = (
        Machine("cuda", count, [card.label] * count, [card.memory_bytes] * count, card.bf16) if card else Machine()
    )
    problems = [
        Problem(one.settings[0], getattr(config, one.settings[0]), one.reason, one.fix)
        for one in check(config, machine)
        if one.blocking
    ]
    if problems:
        raise ConfigError(problems)


def known_shape(model: str) -> ModelShape:
    """The model's shape.

    Raises:
        ConfigError: it has no config.json here, or one that says too little.
    """
    try:
        return forecasting.shape_at(model)
    except ShapeError as error:
        raise ConfigError([Problem("model", model, error.message, error.fix)]) from None


def _counted(config: RunConfig) -> RowLengths | None:
    """The tokens of the data, where they are an id of a data set whose tokens were counted."""
    if not run_data.DATASET_ID.fullmatch(config.data):
        return None
    ready()
    return forecasting.counted(config, config.model)


def _host(gpu: str | None) -> int | None:
    """This machine's memory, where the question is about this machine."""
    return forecasting.host_memory() if gpu is None else None


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
