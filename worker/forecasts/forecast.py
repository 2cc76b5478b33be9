"""Forecasts whether a run fits, from its settings, its model's config.json and its data set's largest batch."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from training.config.choices import Strategy, Task
from training.config.run_config import RunConfig
from training.forecast.advice import Advice, advise
from training.forecast.forecast import SLACK, Forecast, estimate, full_batch
from training.forecast.formula.activations import Batch
from training.forecast.gpus import Card
from training.forecast.step_down import PART_OF, first_step
from training.model_info.config_json import ModelError, read_dimensions
from training.model_info.families import UnknownLayers, read_shape
from training.model_info.shape import ModelShape
from training.tokens.lengths import lost_tokens, truncated
from worker.forecasts import calibration, class_shape, hub_config
from worker.forecasts.calibration import Calibration
from worker.forecasts.worst_batch import RowLengths, Worst, counted, worst_batches_of
from worker.runs.settle import Settled


def shape_at(model: str, revision: str | None = None, task: Task = Task.SFT) -> ModelShape:
    """The shape of a model as a run of this task loads it, from its folder (weights are optional), from its config.json, or from
    that of a hub model if it was fetched. Without a formula for its layers they are read from its class, once (some seconds).

    Raises:
        ModelError: there is no config.json, it lacks values, or neither a formula nor a class knows its layers.
    """
    config = hub_config.config_file(model, revision)
    scores = {Task.REWARD: 1, Task.CLASSIFICATION: 0}.get(task)
    try:
        return read_shape(config, scores=scores)
    except UnknownLayers as unknown:
        return class_shape.read(config, task, unknown)


def host_memory() -> int:
    """The memory of this machine in bytes."""
    import psutil  # every command would wait for it

    return int(psutil.virtual_memory().total)


@dataclass(frozen=True)
class Setup:
    """What a forecast is about: a run with its model's shape and the tokens of its rows (None: not tokenized), and where it shall
    fit: a GPU (None: CPU), the host's memory, and the measured overhead of the allocator.

    `config.model` is a path or hub id as `settle` leaves it. `positions` is the longest sequence that the model takes.
    """

    config: RunConfig
    shape: ModelShape
    card: Card | None
    rows: RowLengths | None = None
    host_bytes: int | None = None
    calibration: Calibration | None = None
    positions: int | None = None

    @classmethod
    def of(
        cls, settled: Settled, card: Card | None, host_bytes: int | None = None, *, shape: ModelShape | None = None
    ) -> "Setup":
        """The setup of a settled run, whose model's `shape` is read if it is not given.

        Raises:
            ConfigError: the user may not read what the configuration names.
            ModelError: the model's shape is unknown.
        """
        config = settled.readable
        shape = shape or shape_at(config.model, config.revision, config.task)
        rows, positions = counted(config), _positions(config.model, config.revision)
        return cls(config, shape, card, rows, host_bytes, calibration.known(card), positions)


@dataclass(frozen=True)
class Estimate:
    """The forecast of a run, configurations that fit (`advice`), and assumptions (`notes`). `worst` is its largest batch, None if
    the data set is not tokenized. `first_step` are the changes that save memory first where it does not fit, as an out-of-memory
    run would make them."""

    forecast: Forecast
    advice: list[Advice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    worst: Worst | None = None
    first_step: dict[str, Any] | None = None


def estimate_run(setup: Setup, *, advises: bool = True) -> Estimate:
    """Forecasts a run on its largest batch; if it `advises`, with the configurations that fit, fastest first; last a lower
    max_length, which loses tokens."""
    forecast, worst = _on_largest_batch(setup)
    if not advises:
        return Estimate(forecast, worst=worst)
    notes, config, card = list(_notes(setup, forecast, worst)), setup.config, setup.card
    if card is None:
        return Estimate(forecast, [], notes, worst)
    batch = forecast.batch
    advice = advise(config, setup.shape, card, batch=batch, host_limit_bytes=setup.host_bytes, slack=_slack(setup))
    if forecast.fits or forecast.unknown:
        return Estimate(forecast, advice, notes, worst)
    advice += _shorter(setup)
    part, tokens = PART_OF[forecast.moment], max(batch.tokens, batch.target_tokens)
    step = first_step(config, card.machine(config.num_processes), part=part, tokens=tokens, shape=setup.shape)
    return Estimate(forecast, advice, notes, worst, step)


def _on_largest_batch(setup: Setup) -> tuple[Forecast, Worst | None]:
    """The forecast of a run on its largest batch, which is None if the data set is not tokenized."""
    config = setup.config
    worst = worst_batches_of(config, setup.rows) if setup.rows and not config.task.pairs else []
    if not worst:
        return _on_batch(setup, full_batch(config)), None
    forecasts = [(_on_batch(setup, candidate.batch), candidate) for candidate in worst]
    return max(forecasts, key=lambda pair: pair[0].peak_bytes)


def _on_batch(setup: Setup, batch: Batch) -> Forecast:
    return estimate(
        setup.config, setup.shape, card=setup.card, batch=batch, host_limit_bytes=setup.host_bytes, slack=_slack(setup)
    )


def _slack(setup: Setup) -> float:
    return setup.calibration.slack if setup.calibration else SLACK


def _notes(setup: Setup, forecast: Forecast, worst: Worst | None) -> Iterator[str]:
    """What the forecast assumes."""
    config, shape = setup.config, setup.shape
    yield worst.words if worst else f"Data set not tokenized yet: assuming {config.max_length:,} tokens per row."
    if config.method.adapts and any(stack.experts for stack in shape.stacks):
        yield "Experts stored as one tensor get no adapter."
    if shape.counted_by == "class":
        yield f"Parameters and layers of {shape.model_type} are read from its class."
    if setup.calibration:
        yield setup.calibration.note
    if setup.card and setup.card.note:
        yield setup.card.note
    if config.async_save and not forecast.copies_bytes:
        yield "Host memory is too small for copies of checkpoints: training waits while each is written."


def _shorter(setup: Setup) -> Iterator[Advice]:
    """The longest max_length that fits with the other settings, in steps of 64 tokens, and what it truncates."""

    def at(length: int) -> Forecast:
        config = setup.config.model_copy(update={"max_length": length})
        return _on_largest_batch(replace(setup, config=config))[0]

    low, high = 0, -(-setup.config.max_length // 64)  # fits, does not
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if at(64 * middle).fits else (low, middle)
    if not low:
        return
    limit, rows = 64 * low, setup.rows
    cost = f"Truncates rows longer than {limit:,} tokens."
    if rows and rows.lengths.any():
        share = lost_tokens(rows.lengths, limit) / int(rows.lengths.sum())
        cost = f"Truncates {truncated(rows.lengths, limit):,} rows, losing {share:.1%} of the tokens."
    yield Advice({"max_length": limit}, at(limit), 1.0, cost)


def as_document(estimated: Estimate) -> dict[str, Any]:
    """The forecast and its advice as JSON, in bytes."""
    forecast = estimated.forecast
    return {
        "fits": forecast.fits,
        "close": forecast.close,
        "reasons": forecast.reasons,
        "peak_bytes": forecast.peak_bytes,
        "moment": forecast.moment,
        "parts": forecast.parts,
        "moments": forecast.moments,
        "host_bytes": forecast.host_bytes,
        "host_moments": forecast.host_moments,
        "copies_bytes": forecast.copies_bytes,
        "nvme_bytes": forecast.nvme_bytes,
        "limit_bytes": forecast.limit_bytes,
        "host_limit_bytes": forecast.host_limit_bytes,
        "trainable_parameters": forecast.trainable,
        "total_parameters": forecast.total,
        "batch": asdict(forecast.batch),
        "advice": [_advice(advice) for advice in estimated.advice],
        "first_step": estimated.first_step,
        "notes": estimated.notes,
        "worst_batch": _worst_batch(estimated.worst) if estimated.worst else None,
    }


def _advice(advice: Advice) -> dict[str, Any]:
    forecast = advice.forecast
    return {
        "changes": advice.changes,
        "relative_speed": round(advice.relative_speed, 3),
        "cost": advice.cost,
        "fits": forecast.fits,
        "peak_bytes": forecast.peak_bytes,
        "host_bytes": forecast.host_bytes,
    }


def spread(config: RunConfig, count: int) -> RunConfig:
    """The configuration on `count` GPUs; on several, the strategy single becomes DDP."""
    several = count > 1 and config.strategy is Strategy.SINGLE
    return config.model_copy(update={"num_processes": count, **({"strategy": Strategy.DDP} if several else {})})


def _worst_batch(worst: Worst) -> dict[str, Any]:
    return {name: value for name, value in asdict(worst).items() if name not in ("batch", "places")}


def _positions(model: str, revision: str | None) -> int | None:
    """The longest sequence that the model takes; None if it has no limit or it is unknown."""
    try:
        return read_dimensions(str(hub_config.config_file(model, revision))).positions
    except ModelError:
        return None
