"""Memory forecasts as the command line and REST request them: by GPU model, number of GPUs and host memory."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training import rules
from training.config.choices import Wanted
from training.config.fields import ConfigError
from training.config.machine import Machine
from training.errors import Problem
from training.forecast import gpus as cards
from training.forecast.gpus import GIB, Card
from training.forecast.solve import Solution
from worker.forecasts import forecast as forecasting
from worker.forecasts import shapes, simulating, solving, speed
from worker.forecasts.forecast import Estimate
from worker.forecasts.prices import Prices
from worker.forecasts.speed import Speed
from worker.machine import devices
from worker.runs.settle import Settled


@dataclass(frozen=True)
class Response:
    """The estimate of a run, the simulated step (None: none was needed), its speed, and the most that fits."""

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


def respond(
    settled: Settled,
    price: Prices,
    *,
    gpu: str | None = None,
    host_gib: float | None = None,
    simulate: bool | None = None,
    solve: Iterable[Wanted] = (),
    fetch_config: bool = False,
) -> Response:
    """The forecast of a run on a GPU model (None: this machine's), with this memory of the host (None: this machine's if its GPU is
    used), a simulated step (`simulate` is None: where the formula cannot decide), and the most that fits.

    With `fetch_config` the model's config.json is first downloaded from the hub.

    Raises:
        ConfigError: the GPU or the model's shape is unknown, settings conflict, the user may not read the model, or a step that is
            needed cannot be simulated.
    """
    config, card = settled.readable, _card(gpu)
    machine = (
        card.machine(config.num_processes, config.num_machines) if card else Machine(most_machines=config.num_machines)
    )
    if conflicts := rules.problems(config, machine):
        raise ConfigError(conflicts)
    if fetch_config:
        shapes.fetch(config.model, config.revision)
    host_bytes = int(host_gib * GIB) if host_gib else None if gpu else forecasting.host_memory()
    estimate = forecasting.estimate_settled(settled, card, host_bytes)
    simulated = _simulated(estimate, simulate)
    solved = solving.solved(estimate.setup, solve, price, simulate=True) if solve else []
    return Response(estimate, simulated, speed.speed_of(estimate.setup, price), solved)


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


def _simulated(estimate: Estimate, simulate: bool | None) -> dict[str, Any] | None:
    """A simulated step on the forecast's batch, if it is asked for; if `simulate` is None, where the forecast cannot decide."""
    forecast = estimate.forecast
    needed = forecast.unknown != "" if simulate is None else simulate
    if not needed and (simulate is False or not forecast.close):
        return None
    step = simulating.simulated(estimate)
    if "problem" in step and needed:
        raise ConfigError([Problem(**step["problem"])])
    return None if "problem" in step else step
