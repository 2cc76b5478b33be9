"""`lathe forecast` and `lathe targets`: the memory and the trainable parameters of a run before it is queued."""

import json
from pathlib import Path
from typing import Any

import click

from app.cli.options import ready
from app.cli.sources.server import Server, chosen
from app.words import numbers
from app.words.forecast import page, solved_page, speed_page
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.config.yaml_file import read_config
from training.errors import Problem
from training.forecast.solve import Wanted
from worker.datasets import run_data
from worker.forecasts import forecast as forecasting
from worker.forecasts import hub_config, prices, requested, solving, targeting
from worker.forecasts import speed as speeds
from worker.store.tables import LOCAL

_SECONDS = 300.0  # a simulation takes up to a minute
_PARTS = {"matched": "With an adapter", "whole": "Fully trained", "others": "Linear, not trained"}


def show(
    path: Path | None,
    overrides: dict[str, Any],
    *,
    gpu: str | None,
    gpus: int | None,
    host_memory: float | None,
    simulate: bool | None,
    fetch_config: bool,
    as_json: bool,
    solve: tuple[str, ...] = (),
) -> None:
    """Prints the memory of a run on each rank, a verdict, settings that fit, its speed, and the most that fits.

    Raises:
        ConfigError: settings are invalid or conflict, or the GPU or the model's shape is unknown.
    """
    values = {"data": "none"} | overrides
    config = requested.on_gpus(read_config(path, values) if path else parse(values), gpus, overrides)
    if server := chosen():
        asked: dict[str, Any] = {"gpu": gpu, "host_memory": host_memory, "simulate": simulate}
        asked |= {"fetch_config": fetch_config, "solve": list(solve)}
        click.echo(_of_server(server, config, asked, as_json=as_json))
        return
    if any(run_data.DATASET_ID.fullmatch(source.path) for source in config.sources):
        ready()  # the data set may be tokenized
    if fetch_config:
        hub_config.fetch(config.model, config.revision)
    found, card = requested.forecast(config, gpu, host_memory)
    simulated = requested.simulate(config, found, card, simulate)
    price = prices.of_user(LOCAL)
    speed = requested.speed_of(config, gpu, price)
    solved = requested.solve(config, map(Wanted, solve), gpu, host_memory, price) if solve else []
    if as_json:
        document = forecasting.as_document(found) | {"speed": speeds.as_document(speed)}
        document |= {"simulated": simulated} if simulated else {}
        document |= {"solved": [solving.as_document(one) for one in solved]} if solve else {}
        click.echo(json.dumps(document))
        return
    click.echo(page(config, found, card, simulated) + "\n\n" + speed_page(speed))
    if solved:
        click.echo("\n" + solved_page(solved))


def _of_server(server: Server, config: RunConfig, asked: dict[str, Any], *, as_json: bool) -> str:
    values = config.model_dump(mode="json", exclude_unset=True)
    asked = {name: value for name, value in asked.items() if value not in (None, [])}
    if as_json:
        return json.dumps(server.send("POST", "/api/forecasts", json=values, params=asked, seconds=_SECONDS))
    return server.text("/api/forecasts", "POST", json=values, params=asked | {"form": "text"}, seconds=_SECONDS)


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
