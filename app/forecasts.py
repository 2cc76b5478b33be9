"""Asking whether a run fits, for the command line and REST: on which card, how many of them, beside how much host memory."""

from collections.abc import Container
from typing import Any

from training import cards
from training.cards import GIB, Card
from training.config import RunConfig
from training.fields import ConfigError, Problem
from training.model_shape import ModelShape, ShapeError
from training.rules import Machine, check
from worker import calibration, devices, forecasting, worst_batch
from worker.forecasting import Found
from worker.reach import find_path


def on_gpus(config: RunConfig, gpus: int | None, given: Container[str]) -> RunConfig:
    """The configuration on so many GPUs, as far as it was not `given` its own number of processes or strategy."""
    if not gpus:
        return config
    if "num_processes" in given:
        gpus = config.num_processes
    return (
        config.model_copy(update={"num_processes": gpus}) if "strategy" in given else forecasting.spread(config, gpus)
    )


def foresee(config: RunConfig, gpu: str | None, host_gib: float | None) -> tuple[Found, Card | None]:
    """The forecast on the named card, on this machine's own where none is named, with this machine's host memory then.

    Raises:
        ConfigError: no such GPU is known, settings cannot go together on it, or the model's shape is not known.
    """
    card = _card(gpu)
    _refuse(config, card)
    host = int(host_gib * GIB) if host_gib else None if gpu else forecasting.host_memory()
    model = str(find_path(config.model) or config.model)
    return forecasting.foresee(
        config,
        _shape(model),
        card,
        rows=worst_batch.counted(config, model),
        host_bytes=host,
        calibration=calibration.known(card),
    ), card


def _card(gpu: str | None) -> Card | None:
    """None for CPU."""
    if gpu is None:
        return forecasting.card_of(devices.machine())
    if gpu.lower() == devices.CPU:
        return None
    try:
        return cards.find_card(gpu)
    except ValueError as error:
        raise ConfigError([Problem("gpu", gpu, str(error))]) from None


def _refuse(config: RunConfig, card: Card | None) -> None:
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


def _shape(model: str) -> ModelShape:
    try:
        return forecasting.shape_at(model)
    except ShapeError as error:
        raise ConfigError([Problem("model", model, error.message, error.fix)]) from None


def simulate(config: RunConfig, found: Found, card: Card | None) -> dict[str, Any]:
    """A simulated step of the run on the batch of its forecast.

    Raises:
        ConfigError: the model cannot be built, or takes too long.
    """
    done = forecasting.simulated(config, found, card)
    if "problem" in done:
        raise ConfigError([Problem(**done["problem"])])
    return done
