"""Forecasts whether a run fits, from its settings, its model's config.json and its data set's largest batch."""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from training.config.choices import Packing
from training.config.run_config import RunConfig
from training.config.task import Task
from training.forecast.advice import Advice, advise
from training.forecast.forecast import Forecast, estimate, full_batch
from training.forecast.formula.activations import Batch
from training.forecast.gpus import Card
from training.forecast.solve import LONGEST
from training.forecast.step_down import PART_OF, first_step
from training.model_info.shape import ModelShape
from training.rewards.rewards import reward_models
from training.tokens.lengths import lost_tokens, truncated
from training.tokens.run_rows import RowLengths
from worker.forecasts import shapes
from worker.forecasts.calibration import Calibration, calibrate
from worker.forecasts.row_lengths import count_rows
from worker.forecasts.worst_batch import Worst, unknown_split, worst_batches_of
from worker.runs.settle import Settled


def host_memory() -> int:
    """The memory of this machine in bytes."""
    import psutil  # every command would wait for it

    return int(psutil.virtual_memory().total)


@dataclass(frozen=True)
class Setup:
    """What a forecast is about: a run with its model's shape and the tokens of its rows (None: not tokenized), and where it shall
    fit: a GPU (None: CPU), the host's memory, and what finished runs measured on that GPU.

    `config.model` is a path or hub id as `settle` leaves it.
    """

    config: RunConfig
    shape: ModelShape
    card: Card | None
    rows: RowLengths | None = None
    host_bytes: int | None = None
    calibration: Calibration = field(default_factory=Calibration)

    @property
    def flat(self) -> bool:
        """True if rows are concatenated without padding, as training/batches/layout.py decides; models that were not tried
        (training/model_info/families.py) are taken to allow it."""
        config = self.config
        plain = config.task.traits.is_language_modeling and config.sequence_parallel_size == 1
        chosen = plain and config.packing is not Packing.NONE and not config.neftune_noise_alpha
        return chosen and not self.shape.pads

    @property
    def longest(self) -> int:
        """The length beyond which nothing changes: of the longest row, or of what the model takes."""
        rows = int(self.rows.lengths.max()) if self.rows is not None and len(self.rows.lengths) else LONGEST
        return min(rows, self.shape.longest or LONGEST)


@dataclass(frozen=True)
class Estimate:
    """The forecast of a run, configurations that fit (`advice`), and assumptions (`notes`). `worst` is its largest batch, None if
    the data set is not tokenized. `first_step` are the changes that save memory first where it does not fit, as an out-of-memory
    run would make them."""

    setup: Setup
    forecast: Forecast
    worst: Worst | None = None
    advice: list[Advice] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    first_step: dict[str, Any] | None = None


def estimate_settled(
    settled: Settled,
    card: Card | None,
    host_bytes: int | None = None,
    *,
    advises: bool = True,
    read: Callable[[str, str | None, Task], ModelShape] = shapes.shape_at,
) -> Estimate:
    """As `estimate_run`, for what the names in a configuration stand for; `read` and errors as in `shapes.of_run`."""
    shape, config = shapes.of_run(settled, read), settled.config
    return estimate_run(Setup(config, shape, card, count_rows(config), host_bytes, calibrate(card)), advises=advises)


def estimate_run(setup: Setup, *, advises: bool = True) -> Estimate:
    """Forecasts a run on its largest batch; if it `advises`, with the configurations that fit, fastest first; last a lower
    max_length, which loses tokens."""
    forecast, worst = _on_largest_batch(setup)
    if not advises:
        return Estimate(setup, forecast, worst)
    notes, config, card = list(_notes(setup, forecast, worst)), setup.config, setup.card
    if card is None:
        return Estimate(setup, forecast, worst, notes=notes)
    batch, slack = forecast.batch, setup.calibration.slack
    advice = advise(config, setup.shape, card, batch=batch, host_limit_bytes=setup.host_bytes, slack=slack)
    if forecast.fits or forecast.unknown:
        return Estimate(setup, forecast, worst, advice, notes)
    part, tokens = PART_OF[forecast.moment], max(batch.tokens, batch.target_tokens)
    step = first_step(config, card.machine(config.num_processes), part=part, tokens=tokens, shape=setup.shape)
    return Estimate(setup, forecast, worst, [*advice, *_shorter(setup)], notes, step)


def _on_largest_batch(setup: Setup) -> tuple[Forecast, Worst | None]:
    """The forecast of a run on its largest batch, which is None if the data set is not tokenized."""
    config = setup.config
    batches: list[Worst] = []
    if setup.rows and not config.task.traits.pairs:
        batches = worst_batches_of(config, setup.rows, flat=setup.flat)
    if not batches:
        return _on_batch(setup, full_batch(config)), None
    forecasts = [(_on_batch(setup, worst.batch), worst) for worst in batches]
    return max(forecasts, key=lambda pair: pair[0].peak_bytes)


def _on_batch(setup: Setup, batch: Batch) -> Forecast:
    config, slack = setup.config, setup.calibration.slack
    return estimate(config, setup.shape, card=setup.card, batch=batch, host_limit_bytes=setup.host_bytes, slack=slack)


def _notes(setup: Setup, forecast: Forecast, worst: Worst | None) -> Iterator[str]:
    """What the forecast assumes."""
    config, shape = setup.config, setup.shape
    yield worst.words if worst else f"{_unknown(setup)}: assuming {config.max_length:,} tokens per row."
    if worst and setup.rows and (by := unknown_split(config, setup.rows)):
        yield f"Which rows are held out by {by!r} is not known yet: the largest batch is of all rows."
    if config.validation_data and setup.rows and setup.rows.validation is None:
        yield f"Evaluation data not tokenized yet: assuming {config.max_length:,} tokens per row."
    if config.method.adapts and any(stack.experts for stack in shape.stacks):
        yield "Experts stored as one tensor get no adapter."
    if config.task.traits.has_teacher and shape.teacher is None:
        yield "The teacher is not counted: its config.json is not on this machine."
    if config.task.traits.rewards_samples and len(reward_models(config.rewards)) > len(shape.reward_models):
        yield "A reward model is not counted: its config.json is not on this machine."
    if shape.counted_by == "class":
        yield f"Parameters and layers of {shape.model_type} are read from its class."
    if setup.calibration.note:
        yield setup.calibration.note
    if setup.card and setup.card.note:
        yield setup.card.note
    if config.async_save and not forecast.copies_bytes:
        yield "Host memory is too small for copies of checkpoints: training waits while each is written."


def _unknown(setup: Setup) -> str:
    """Why the largest batch is not known."""
    if setup.config.streaming:
        return "The rows of a stream's batches are not known in advance"
    if setup.config.task.traits.pairs and setup.rows:
        return "The largest batch of pairs is not forecast"
    if setup.rows and (by := unknown_split(setup.config, setup.rows)):
        return f"Which rows are held out by {by!r} is not known yet"
    return "No row of the data set carries loss" if setup.rows else "Data set not tokenized yet"


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


_FIGURES = (
    "fits", "close", "reasons", "peak_bytes", "moment", "parts", "moments", "host_bytes", "host_moments", "copies_bytes",
    "nvme_bytes", "limit_bytes", "host_limit_bytes", "trainable_parameters", "total_parameters",
)  # fmt: skip


def as_document(estimated: Estimate) -> dict[str, Any]:
    """The forecast and its advice as JSON, in bytes."""
    forecast = estimated.forecast
    return {name: getattr(forecast, name) for name in _FIGURES} | {
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


def _worst_batch(worst: Worst) -> dict[str, Any]:
    return {name: value for name, value in asdict(worst).items() if name not in ("batch", "places")}
