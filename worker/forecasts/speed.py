"""How long a run takes, how much energy and money it costs: a roofline, calibrated with the finished runs on the same GPU model.

Each answer is a range. Without a basis (a CPU, a GPU whose power is unknown, no price) there is none, and `reason` says why.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from training.config.choices import Packing
from training.config.run_config import RunConfig
from training.errors import DataError
from training.forecast.formula.activations import Batch
from training.forecast.gpus import Card
from training.forecast.roofline import roofline
from training.tokens.run_rows import RowLengths, TrainingRows, selected_rows, training_rows
from worker.forecasts.calibration import Calibration
from worker.forecasts.forecast import Setup
from worker.forecasts.prices import Prices

Range = tuple[float, float]


@dataclass(frozen=True)
class Speed:
    """Ranges from the best to the worst case; None where there is no basis. `steps` is None if the data set's rows are unknown.

    `notes` say what the ranges rest on and what is missing.
    """

    tokens_per_second: Range | None = None
    seconds_per_step: Range | None = None
    steps: int | None = None
    hours: Range | None = None
    kwh: Range | None = None
    cost: Range | None = None
    notes: tuple[str, ...] = ()


def speed_of(setup: Setup, prices: Prices | None = None) -> Speed:
    """Time, energy and money of a run."""
    config, card, rows = setup.config, setup.card, setup.rows
    if card is None:
        return Speed(notes=("Cannot say how long it takes: speed is estimated only for GPUs.",))
    if config.task.traits.samples:
        note = "Cannot say how long it takes: the time of drawing samples depends on their lengths."
        return Speed(steps=steps_of(config, rows), notes=(note,))
    ideal, (low, high) = roofline(config, setup.shape, card, mean_batch(setup)), setup.calibration.efficiency
    seconds = ideal.seconds(high), ideal.seconds(low)
    rate = ideal.tokens / seconds[1], ideal.tokens / seconds[0]
    steps = steps_of(config, rows)
    speed = Speed(rate, seconds, steps, notes=(_basis(setup.calibration, card),))
    if steps is None:
        return _noted(speed, "Cannot say how many hours: the data set is not tokenized and max_steps is not set.")
    hours = steps * seconds[0] / 3600, steps * seconds[1] / 3600
    speed = replace(speed, hours=hours)
    return _with_costs(speed, config, card, hours, prices or Prices())


def _with_costs(speed: Speed, config: RunConfig, card: Card, hours: Range, prices: Prices) -> Speed:
    power, gpus = card.watts, config.num_processes
    if power is None:
        speed = _noted(speed, f"Cannot say how much energy: the power of {card.label} is unknown.")
    else:
        kwh = hours[0] * gpus * power[0] / 1000, hours[1] * gpus * power[1] / 1000
        speed = replace(speed, kwh=kwh)
    hourly = prices.by_card.get(card.name, prices.gpu_hour)
    if hourly is None and (prices.kwh is None or speed.kwh is None):
        return _noted(speed, "Enter prices of a GPU hour and of a kWh in Settings to see what it costs.")
    amounts = [gpus * hour * (hourly or 0) for hour in hours]
    if prices.kwh is not None and speed.kwh:
        amounts = [amount + kwh * prices.kwh for amount, kwh in zip(amounts, speed.kwh, strict=True)]
    return replace(speed, cost=(amounts[0], amounts[1]))


def _noted(speed: Speed, note: str) -> Speed:
    return replace(speed, notes=(*speed.notes, note))


def _basis(calibration: Calibration, card: Card) -> str:
    low, high = calibration.efficiency
    share = f"{low:.0%} to {high:.0%} of the roofline"
    if runs := calibration.efficiency_runs:
        return f"Speed: {share} of {card.label}, as measured in {runs} runs on this GPU model."
    return f"Speed: {share} of {card.label}, the range of published runs. Your own finished runs narrow it."


def mean_batch(setup: Setup) -> Batch:
    """An average micro batch; rows of unknown data have the maximum length."""
    config, rows = setup.config, setup.rows
    count, length = config.micro_batch_size * (2 if config.task.traits.pairs else 1), float(config.max_length)
    flat, loss = setup.flat, 1.0
    if rows is not None and (trained := _training(config, rows)):
        lengths = trained.source + trained.target if config.task.traits.has_encoder else trained.lengths
        length = float(lengths.mean())
        loss = float(trained.target.sum()) / max(float(lengths.sum()), 1.0)
        if not flat:
            length = _longest_of(lengths, count)
        if config.packing is Packing.PACKED:
            length = float(config.max_length)
    tokens = max(int(count * length), 1)
    logits = int(tokens * loss) if flat else tokens
    if config.task.traits.has_encoder:
        target = min(config.max_target_length or config.max_length, max(int(length), 1))
        return Batch(count, int(length), tokens, count * target, target, count * target)
    return Batch(count, max(int(length), 1), tokens, logits if config.task.traits.generates else 0, flat=flat)


def _training(config: RunConfig, rows: RowLengths) -> TrainingRows | None:
    """The training rows of a run; None if it has none and is refused."""
    try:
        return training_rows(config, rows, selected_rows(config, rows).train)
    except DataError:
        return None


def _longest_of(lengths: Any, count: int) -> float:
    """The expected length of the longest of `count` rows, to which the others are padded."""
    ordered = np.sort(lengths)
    shares = (np.arange(1, len(ordered) + 1) / len(ordered)) ** count
    return float((ordered * np.diff(shares, prepend=0.0)).sum())


def steps_of(config: RunConfig, rows: RowLengths | None) -> int | None:
    """The optimizer steps of a run; None if neither settings nor the rows of its data say."""
    if config.max_steps or rows is None:
        return config.max_steps
    try:
        trained = _training(config, rows)
        return trained.steps if trained else None
    except DataError:  # the weights of a mixture make no epoch
        return None


def as_document(speed: Speed) -> dict[str, Any]:
    """The ranges as JSON: seconds, hours, kWh and money from the best to the worst case."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in vars(speed).items()}
