"""Memory forecasts as the command line and REST request them: by GPU model, number of GPUs and host memory."""

from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Any

from training import rules
from training.config.fields import ConfigError
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import Problem
from training.forecast import gpus as cards
from training.forecast.gpus import GIB, Card
from training.forecast.solve import Solution, Wanted
from worker.forecasts import forecast as forecasting
from worker.forecasts import hub_config, simulating, solving, speed
from worker.forecasts.forecast import Estimate, Setup, estimate_run
from worker.forecasts.prices import Prices
from worker.forecasts.speed import Speed
from worker.machine import devices
from worker.runs.settle import Settled


@dataclass(frozen=True)
class Request:
    """What is asked beside the run: the GPU model (None: this machine's), the host's memory, a simulated step (None: where the
    formula cannot decide), the most that fits, and that the model's config.json is first downloaded from the hub."""

    gpu: str | None = None
    host_gib: float | None = None
    simulate: bool | None = None
    solve: Iterable[Wanted] = ()
    fetch_config: bool = False


@dataclass(frozen=True)
class Response:
    """The estimate of a run with its setup, the simulated step (None: none was needed), its speed, and the most that fits."""

    setup: Setup
    estimate: Estimate
    simulated: dict[str, Any] | None
    speed: Speed
    solved: list[Solution]

    def document(self) -> dict[str, Any]:
        """All of it as JSON, in bytes."""
        document = forecasting.as_document(self.estimate) | {"speed": speed.as_document(self.speed)}
        document |= {"simulated": self.simulated} if self.simulated else {}
        return document | (
            {"solved": [solving.as_document(solution) for solution in self.solved]} if self.solved else {}
        )


def on_gpus(config: RunConfig, gpus: int | None, typed: Container[str]) -> RunConfig:
    """The configuration on `gpus` GPUs, unless its processes or its strategy are among the `typed` settings."""
    if not gpus:
        return config
    if "num_processes" in typed:
        gpus = config.num_processes
    return (
        config.model_copy(update={"num_processes": gpus}) if "strategy" in typed else forecasting.spread(config, gpus)
    )


def respond(settled: Settled, request: Request, price: Prices) -> Response:
    """The forecast of a run on the requested GPU, by default on this machine's GPU with its host memory.

    Raises:
        ConfigError: the GPU or the model's shape is unknown, settings conflict, the user may not read the model, or a step that is
            needed cannot be simulated.
    """
    config = settled.readable
    if request.fetch_config:
        hub_config.fetch(settled.typed.model, config.revision)
    card, host = _card(request.gpu), request.host_gib
    if conflicts := rules.problems(config, _machine(config, card)):
        raise ConfigError(conflicts)
    setup = Setup.of(settled, card, int(host * GIB) if host else None if request.gpu else forecasting.host_memory())
    estimated = estimate_run(setup)
    simulated = _simulated(setup, estimated, request.simulate)
    solved = solving.solved(setup, request.solve, price, simulate=True)
    return Response(setup, estimated, simulated, speed.speed_of(setup, price), solved)


def _card(gpu: str | None) -> Card | None:
    """The GPU; None for the CPU."""
    if gpu is None:
        return cards.of_machine(devices.machine())
    if gpu.lower() == devices.CPU:
        return None
    try:
        return cards.find_card(gpu)
    except ValueError as error:
        raise ConfigError([Problem("gpu", gpu, str(error))]) from None


def _machine(config: RunConfig, card: Card | None) -> Machine:
    """Machines with these GPUs, as many as the run uses."""
    machines = config.num_machines
    return card.machine(config.num_processes, machines) if card else Machine(most_machines=machines)


def _simulated(setup: Setup, estimated: Estimate, simulate: bool | None) -> dict[str, Any] | None:
    """A simulated step on the forecast's batch, if it is asked for; if `simulate` is None, where the forecast cannot decide.

    Raises:
        ConfigError: a step that is needed cannot be simulated: the model cannot be built, or it takes too long.
    """
    needed = estimated.forecast.unknown != "" if simulate is None else simulate
    if not needed and (simulate is False or not estimated.forecast.close):
        return None
    step = simulating.simulated(setup, estimated)
    if "problem" in step and needed:
        raise ConfigError([Problem(**step["problem"])])
    return None if "problem" in step else step
