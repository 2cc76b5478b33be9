"""`lathe forecast` and `lathe targets`: the memory and the trainable parameters of a run before it is queued."""

import json
from pathlib import Path
from typing import Any

import click

from app.cli.options import ready
from app.words import numbers
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.config.yaml_file import read_config
from training.errors import Problem
from training.forecast.forecast import MOMENTS
from training.forecast.gpus import Card
from training.units import byte_size
from worker.datasets import run_data
from worker.forecasts import forecast as forecasting
from worker.forecasts import hub_config, requested, targeting
from worker.forecasts.forecast import Found

_PARTS = {"matched": "With an adapter", "whole": "Fully trained", "others": "Linear, not trained"}


def show(
    path: Path | None,
    overrides: dict[str, Any],
    *,
    gpu: str | None,
    gpus: int | None,
    host_memory: float | None,
    simulate: bool,
    fetch_config: bool,
    as_json: bool,
) -> None:
    """Prints the memory of a run on each rank, a verdict, and settings that fit.

    Raises:
        ConfigError: settings are invalid or conflict, or the GPU or the model's shape is unknown.
    """
    values = {"data": "none"} | overrides
    config = requested.on_gpus(read_config(path, values) if path else parse(values), gpus, overrides)
    if any(run_data.DATASET_ID.fullmatch(source.path) for source in config.sources):
        ready()  # the data set may be tokenized
    if fetch_config:
        hub_config.fetch(config.model, config.revision)
    found, card = requested.forecast(config, gpu, host_memory)
    simulated = requested.simulate(config, found, card) if simulate else None
    if as_json:
        document = forecasting.as_document(found)
        click.echo(json.dumps(document | {"simulated": simulated} if simulated else document))
    else:
        click.echo(forecast_page(config, found, card) + (simulation_page(simulated) if simulated else ""))


def forecast_page(config: RunConfig, found: Found, card: Card | None) -> str:
    """The forecast as text."""
    forecast = found.forecast
    place = f"{numbers.plural(config.num_processes, 'GPU')}, {card.label}" if card else "CPU"
    share = numbers.percent(forecast.trainable / max(forecast.total, 1), 4)
    lines = [
        f"{'Fits' if forecast.fits else 'Does not fit'}: {place}, {config.method}, {config.strategy}, "
        f"{config.micro_batch_size} x {forecast.batch.length:,} tokens.",
        *forecast.reasons,
        "",
        numbers.table(_parts(found)),
        "",
        f"{forecast.trainable:,} of {forecast.total:,} parameters are trainable ({share}). "
        f"The peak is at {MOMENTS[forecast.moment]}.",
        *found.notes,
    ]
    if found.advice:
        heading = "Also fits, fastest first:" if forecast.fits else "Settings that fit, fastest first:"
        lines += ["", heading, numbers.table(_advice(found))]
    elif not forecast.fits:
        lines += [
            "",
            "No setting that Lathe tried fits. Use more or larger GPUs, a shorter max_length or a smaller model.",
        ]
    return "\n".join(lines)


def simulation_page(done: dict[str, Any]) -> str:
    """The result of a simulation as text: its peak, the parts of the peak, and its place."""
    overhead = done.get("besides_bytes", 0)
    rows = [[name.capitalize(), byte_size(amount)] for name, amount in done["parts"].items() if amount]
    rows += [["Context and slack", byte_size(overhead)]] if overhead else []
    verdict = {True: "It fits.", False: "It does not fit.", None: ""}[done.get("fits")]
    rows.append(["Total", byte_size(done["peak_bytes"] + overhead)])
    where = (
        f"{done['module'] or 'the model'}, {done['function']} ({done['line']})" if done["line"] else done["operator"]
    )
    return f"\n\nSimulated step. {verdict} The peak is in the {done['phase']} pass of {where}.\n\n{numbers.table(rows)}"


def _parts(found: Found) -> list[list[str]]:
    forecast = found.forecast
    rows = [[name.capitalize(), byte_size(amount)] for name, amount in forecast.parts.items()]
    limit = f"of {byte_size(forecast.limit_bytes)}" if forecast.limit_bytes else ""
    rows = [["On each rank", ""], *rows, ["Total", byte_size(forecast.peak_bytes), limit]]
    host = f"of {byte_size(forecast.host_limit_bytes)}" if forecast.host_limit_bytes else ""
    if forecast.host_bytes:
        rows.append(["Host RAM, all ranks", byte_size(forecast.host_bytes), host])
    if forecast.nvme_bytes:
        rows.append(["NVMe, all ranks", byte_size(forecast.nvme_bytes)])
    width = max(len(row) for row in rows)
    return [row + [""] * (width - len(row)) for row in rows]


def _advice(found: Found) -> list[list[str]]:
    rows = [["Speed", "Each rank", "Host", "Settings to change", "Cost"]]
    for advice in found.advice:
        changes = ", ".join(f"{name}={value}" for name, value in advice.changes.items()) or "none"
        device, host = byte_size(advice.forecast.peak_bytes), byte_size(advice.forecast.host_bytes)
        rows.append([f"{advice.relative_speed:.0%}", device, host, changes, advice.cost])
    return rows


def targets(path: Path | None, overrides: dict[str, Any], *, as_json: bool) -> None:
    """Prints the parameters that the settings train. Data is optional.

    Raises:
        ConfigError: a setting is invalid, the model cannot be built, or no module matches.
    """
    config = read_config(path, overrides) if path else parse({"data": "none"} | overrides)
    answer = targeting.list_targets(config)
    if "problem" in answer:
        raise ConfigError([Problem(**answer["problem"])])
    click.echo(json.dumps(answer) if as_json else targets_page(answer))


def targets_page(answer: targeting.Answer) -> str:
    """The trainable parameters as text."""
    share = numbers.percent(answer["trainable"] / answer["total"], 4)
    lines = [f"{answer['trainable']:,} of {answer['total']:,} parameters are trainable ({share})."]
    for part, heading in _PARTS.items():
        rows = [[group["pattern"], f"x {group['count']}", group["shape"]] for group in answer[part]]
        if rows:
            lines.append("\n" + numbers.table([[heading, "", "in -> out"], *rows]))
    return "\n".join(lines)
