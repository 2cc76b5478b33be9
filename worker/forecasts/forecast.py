"""Forecasts whether a run fits, from its settings, its model's config.json and its data set's largest batch."""

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from training.config.choices import Strategy, Task
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast import gpus
from training.forecast.advice import Advice, advise
from training.forecast.card_share import workspace_bytes
from training.forecast.first_step import PART_OF, first_step
from training.forecast.forecast import SLACK, Forecast, forecast, full_batch
from training.forecast.formula.sizes import resolved
from training.forecast.gpus import Card
from training.model_info.config_json import ModelError
from training.model_info.families import UnknownLayers, read_shape
from training.model_info.shape import ModelShape
from training.tokens.lengths import lost_tokens, truncated
from worker.forecasts import class_shape, hub_config, simulating
from worker.forecasts.calibration import Calibration
from worker.forecasts.worst_batch import RowLengths, Worst, worst_batches_of


def shape_at(model: str, revision: str | None = None, task: Task = Task.SFT) -> ModelShape:
    """The shape of a model as a run of this task loads it, from its folder (weights are optional), from its config.json, or from
    that of a hub model if it was fetched. Without a formula for its layers they are read from its class, once (some seconds).

    Raises:
        ModelError: there is no config.json, it lacks values, or neither a formula nor a class knows its layers.
    """
    config = config_file(model, revision)
    scores = {Task.REWARD: 1, Task.CLASSIFICATION: 0}.get(task)
    try:
        return read_shape(config, scores=scores)
    except UnknownLayers as unknown:
        return class_shape.read(config, task, unknown)


def config_file(model: str, revision: str | None = None) -> Path:
    """The config.json of a model in a folder, of the file itself, or of a hub model if it was fetched.

    Raises:
        ModelError: there is none.
    """
    path = Path(model).expanduser()
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file() and (fetched := hub_config.known(model, revision)):
        return fetched
    if not config.is_file():
        fix = "Download its config.json (the weights are not needed) and give the folder or the file."
        raise ModelError(model, "the model is not on this machine.", fix)
    return config


def card_of(machine: Machine) -> Card | None:
    """This machine's GPU with the least memory; None without a GPU."""
    return gpus.of_machine(machine.names, machine.memory_bytes) if machine.kind == "cuda" else None


def host_memory() -> int:
    """The memory of this machine in bytes."""
    return int(psutil.virtual_memory().total)


@dataclass(frozen=True)
class Found:
    """The forecast, configurations that fit (`advice`), and assumptions (`notes`). `first_step` are the changes that save memory
    first where it does not fit, as an out-of-memory run would make them."""

    forecast: Forecast
    advice: list[Advice]
    notes: list[str]
    worst: Worst | None = None
    first_step: dict[str, Any] | None = None


def forecast_run(
    config: RunConfig,
    shape: ModelShape,
    card: Card | None,
    *,
    rows: RowLengths | None = None,
    host_bytes: int | None = None,
    calibration: Calibration | None = None,
) -> Found:
    """Forecasts a run and the configurations that fit, fastest first; last a lower max_length, which loses tokens."""
    notes, slack = [], calibration.slack if calibration else SLACK

    def of(asked: RunConfig) -> tuple[Forecast, Worst | None]:
        return forecast_only(asked, shape, card, rows=rows, host_bytes=host_bytes, calibration=calibration)

    found, top = of(config)
    batch = found.batch
    notes.append(top.words if top else f"Data set not tokenized yet: assuming {config.max_length:,} tokens per row.")
    if config.method.adapts and any(stack.experts for stack in shape.stacks):
        notes.append("Experts stored as one tensor get no adapter.")
    if shape.counted_by == "class":
        notes.append(f"Parameters and layers of {shape.model_type} are read from its class.")
    if calibration:
        notes.append(calibration.note)
    if card and card.note:
        notes.append(card.note)
    if config.async_save and not found.copies_bytes:
        notes.append("Host memory is too small for copies of checkpoints: training waits while each is written.")
    if card is None:
        return Found(found, [], notes, top)
    advice = advise(
        config, shape, card, batch=batch, host_limit_bytes=host_bytes, nvme=bool(config.nvme_path), slack=slack
    )
    if found.fits or found.unknown:
        return Found(found, advice, notes, top)
    advice += _shorter(config, rows, lambda asked: of(asked)[0])
    part, tokens = PART_OF[found.moment], max(batch.tokens, batch.target_tokens)
    step = first_step(config, machine_of(card, config.num_processes), part=part, tokens=tokens, shape=shape)
    return Found(found, advice, notes, top, step)


def machine_of(card: Card, gpus: int) -> Machine:
    """A machine with `gpus` of these cards."""
    return Machine("cuda", gpus, [card.label] * gpus, [card.memory_bytes] * gpus, card.bf16)


def forecast_only(
    config: RunConfig,
    shape: ModelShape,
    card: Card | None,
    *,
    rows: RowLengths | None = None,
    host_bytes: int | None = None,
    calibration: Calibration | None = None,
) -> tuple[Forecast, Worst | None]:
    """Forecasts a run on its largest batch, which is None if the data set is not tokenized. Makes no advice."""
    slack = calibration.slack if calibration else SLACK
    known = worst_batches_of(config, rows) if rows and not config.task.pairs else []
    given: dict[str, Any] = {"card": card, "host_limit_bytes": host_bytes, "slack": slack}
    if not known:
        return forecast(config, shape, batch=full_batch(config), **given), None
    tried = [(forecast(config, shape, batch=one.batch, **given), one) for one in known]
    return max(tried, key=lambda one: one[0].peak_bytes)


def _shorter(config: RunConfig, rows: RowLengths | None, of: Callable[[RunConfig], Forecast]) -> Iterator[Advice]:
    """The longest max_length that fits with the other settings, in steps of 64 tokens, and what it truncates."""
    low, high = 0, -(-config.max_length // 64)  # fits, does not
    while high - low > 1:
        middle = (low + high) // 2
        fits = of(config.model_copy(update={"max_length": 64 * middle})).fits
        low, high = (middle, high) if fits else (low, middle)
    if not low:
        return
    limit = 64 * low
    cost = f"Truncates rows longer than {limit:,} tokens."
    if rows and rows.lengths.any():
        share = lost_tokens(rows.lengths, limit) / int(rows.lengths.sum())
        cost = f"Truncates {truncated(rows.lengths, limit):,} rows, losing {share:.1%} of the tokens."
    yield Advice({"max_length": limit}, of(config.model_copy(update={"max_length": limit})), 1.0, cost)


def as_document(found: Found) -> dict[str, Any]:
    """The forecast and its advice as JSON, in bytes."""
    return numbers(found.forecast) | {
        "advice": [
            {
                "changes": one.changes,
                "relative_speed": round(one.relative_speed, 3),
                "cost": one.cost,
                **_short(one.forecast),
            }
            for one in found.advice
        ],
        "first_step": found.first_step,
        "notes": found.notes,
        "worst_batch": _place(found.worst) if found.worst else None,
    }


def numbers(found: Forecast) -> dict[str, Any]:
    """A forecast as JSON."""
    return {
        "fits": found.fits,
        "close": found.close,
        "reasons": found.reasons,
        "peak_bytes": found.peak_bytes,
        "moment": found.moment,
        "parts": found.parts,
        "moments": found.moments,
        "host_bytes": found.host_bytes,
        "host_moments": found.host_moments,
        "copies_bytes": found.copies_bytes,
        "nvme_bytes": found.nvme_bytes,
        "limit_bytes": found.limit_bytes,
        "host_limit_bytes": found.host_limit_bytes,
        "trainable_parameters": found.trainable,
        "total_parameters": found.total,
        "batch": asdict(found.batch),
    }


def _short(found: Forecast) -> dict[str, Any]:
    return {"fits": found.fits, "peak_bytes": found.peak_bytes, "host_bytes": found.host_bytes}


def spread(config: RunConfig, count: int) -> RunConfig:
    """The configuration on `count` GPUs; on several, the strategy single becomes DDP."""
    several = count > 1 and config.strategy is Strategy.SINGLE
    return config.model_copy(update={"num_processes": count, **({"strategy": Strategy.DDP} if several else {})})


def simulated(config: RunConfig, found: Found, card: Card | None) -> dict[str, Any]:
    """Simulates a step of the run on its largest batch (worker/forecasts/simulating.py); up to a minute for a large model.

    `peak_bytes` and `parts` are what torch would count, `besides_bytes` what the whole run needs besides: the CUDA context, NCCL's
    buffers, what the allocator reserves but cannot use, and what saving takes beyond a step.
    """
    device = "cuda" if card else "cpu"
    given: dict[str, Any] = simulated_batch(config, found) | card_facts(card)
    done = simulating.simulate(config, resolved(config.precision, card), device=device, **given)
    forecast, limit = found.forecast, found.forecast.limit_bytes
    if "problem" in done or limit is None:
        return done
    peak = forecast.with_steps(done["needed_bytes"])
    needed = peak + forecast.beyond_steps(peak)
    return done | {"besides_bytes": needed - done["peak_bytes"], "fits": needed <= limit}


def card_facts(card: Card | None) -> dict[str, Any]:
    """What a simulation has to know of the card and the allocator: whether it has FlashAttention kernels, cuBLAS's workspaces, and
    whether segments can grow."""
    grow = "expandable_segments:True" in os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
    return {"flash": card is None or card.flash, "workspace_bytes": workspace_bytes(card), "expandable_segments": grow}


def simulated_batch(config: RunConfig, found: Found) -> dict[str, Any]:
    """The forecast's batch as the simulation takes it: `lengths`, and `targets` (seq2seq) or `labeled` tokens of each row; and in
    `places` the batches of first steps and micro steps where they are larger."""
    batch, worst, pairs = found.forecast.batch, found.worst, 2 if config.task.pairs else 1
    name = "targets" if config.task is Task.SEQ2SEQ else "labeled"
    if worst is None:
        lengths = [batch.length] * (batch.rows // pairs)
        return {"lengths": lengths, name: [batch.target_length or batch.length] * len(lengths)}
    places = [
        {
            "first_step": one.batch.first_step,
            "first_micro": one.batch.first_micro,
            "lengths": one.lengths,
            name: one.answers,
        }
        for one in worst.places
    ]
    return {"lengths": worst.lengths, name: worst.answers, "places": places}


def _place(worst: Worst) -> dict[str, Any]:
    return {name: value for name, value in asdict(worst).items() if name not in ("batch", "places")}
