"""Memory forecasts as the command line and REST request them: by GPU model, number of GPUs and host memory."""

from collections.abc import Container, Iterable
from dataclasses import replace
from typing import Any

from training.config.fields import ConfigError
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import Problem
from training.forecast import gpus as cards
from training.forecast.gpus import GIB, Card
from training.forecast.solve import Solution, Wanted
from training.model_info.config_json import ModelError
from training.model_info.dimensions import read_dimensions
from training.rules import check
from worker.allowed_paths import find_path
from worker.forecasts import calibration, solving, speed, worst_batch
from worker.forecasts import forecast as forecasting
from worker.forecasts.forecast import Found
from worker.forecasts.prices import Prices
from worker.forecasts.speed import Speed
from worker.machine import devices


def on_gpus(config: RunConfig, gpus: int | None, given: Container[str]) -> RunConfig:
    """The configuration on `gpus` GPUs, unless its processes or its strategy are `given`."""
    if not gpus:
        return config
    if "num_processes" in given:
        gpus = config.num_processes
    return (
        config.model_copy(update={"num_processes": gpus}) if "strategy" in given else forecasting.spread(config, gpus)
    )


def forecast(config: RunConfig, gpu: str | None, host_gib: float | None) -> tuple[Found, Card | None]:
    """The forecast on the named GPU, by default on this machine's GPU with its host memory.

    Raises:
        ConfigError: the GPU or the model's shape is unknown, or settings conflict.
    """
    card = _card(gpu)
    _refuse(config, card)
    host = int(host_gib * GIB) if host_gib else None if gpu else forecasting.host_memory()
    model = str(find_path(config.model) or config.model)
    return forecasting.forecast_run(
        config,
        forecasting.shape_at(model, config.revision, config.task),
        card,
        rows=worst_batch.counted(config, model),
        host_bytes=host,
        calibration=calibration.known(card),
    ), card


def solve(
    config: RunConfig,
    wanted: Iterable[Wanted],
    gpu: str | None,
    host_gib: float | None,
    price: Prices,
    *,
    simulate: bool = True,
) -> list[Solution]:
    """The most that fits, for each question; with `simulate` confirmed by simulated steps.

    Raises:
        ConfigError: as `forecast`.
    """
    card = _card(gpu)
    host = int(host_gib * GIB) if host_gib else None if gpu else forecasting.host_memory()
    return solving.solved(problem(config, card, host), wanted, price, simulate=simulate)


def problem(config: RunConfig, card: Card | None, host: int | None = None) -> solving.Problem:
    """The run with its model's shape and the tokens of its rows.

    Raises:
        ModelError: the model's shape is unknown.
    """
    model = str(find_path(config.model) or config.model)
    shape = forecasting.shape_at(model, config.revision, config.task)
    rows = worst_batch.counted(config, model)
    return solving.Problem(config, shape, card, rows, host, _positions(model, config.revision))


def speed_of(config: RunConfig, gpu: str | None, price: Prices) -> Speed:
    """Time, energy and money of a run.

    Raises:
        ConfigError: as `forecast`.
    """
    asked = problem(config, _card(gpu))
    return speed.speed_of(config, asked.shape, asked.card, asked.rows, price)


def _positions(model: str, revision: str | None) -> int | None:
    """The longest sequence that the model takes; None if it has no limit or it is unknown."""
    try:
        return read_dimensions(str(forecasting.config_file(model, revision))).positions
    except ModelError:
        return None


def _card(gpu: str | None) -> Card | None:
    """The GPU; None for the CPU."""
    if gpu is None:
        return forecasting.card_of(devices.machine())
    if gpu.lower() == devices.CPU:
        return None
    try:
        return cards.find_card(gpu)
    except ValueError as error:
        raise ConfigError([Problem("gpu", gpu, str(error))]) from None


def _refuse(config: RunConfig, card: Card | None) -> None:
    """Raises ConfigError for settings that cannot run on these GPUs."""
    count = max(config.num_processes, 1)
    machine = replace(
        Machine("cuda", count, [card.label] * count, [card.memory_bytes] * count, card.bf16) if card else Machine(),
        most_machines=config.num_machines,
    )
    problems = [
        Problem(conflict.settings[0], getattr(config, conflict.settings[0]), conflict.reason, conflict.fix)
        for conflict in check(config, machine)
        if conflict.blocking
    ]
    if problems:
        raise ConfigError(problems)


def simulate(config: RunConfig, found: Found, card: Card | None, asked: bool | None = None) -> dict[str, Any] | None:
    """A simulated step of the run on the forecast's batch, if it is `asked` for; if it is None, where the forecast cannot decide.

    Raises:
        ConfigError: a step that is needed cannot be simulated: the model cannot be built, or it takes too long.
    """
    needed = bool(asked if asked is not None else found.forecast.unknown)
    if not needed and (asked is False or not found.forecast.close):
        return None
    done = forecasting.simulated(config, found, card)
    if "problem" in done and needed:
        raise ConfigError([Problem(**done["problem"])])
    return None if "problem" in done else done
