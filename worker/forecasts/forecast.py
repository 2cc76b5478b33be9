"""Forecasts whether a run fits, from its settings, its model's config.json and its data set's largest batch."""

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
from training.forecast.forecast import SLACK, Forecast, forecast, full_batch
from training.forecast.gpus import Card
from training.forecast.sizes import resolved
from training.model_info.config_json import ModelError
from training.model_info.families import read_shape
from training.model_info.folder import count_parameters
from training.model_info.shape import ModelShape
from training.tokens.lengths import lost_tokens, truncated
from worker.forecasts import hub_config, simulating
from worker.forecasts.calibration import Calibration
from worker.forecasts.worst_batch import RowLengths, Worst, worst_batches_of


def shape_at(model: str, revision: str | None = None) -> ModelShape:
    """The shape of a model from its folder (weights are optional), from its config.json, or from that of a hub model if it was
    fetched.

    Raises:
        ModelError: there is no config.json, or it lacks values.
    """
    path = Path(model).expanduser()
    config = path / "config.json" if path.is_dir() else path
    if not config.is_file() and (fetched := hub_config.known(model, revision)):
        return read_shape(fetched)
    if not config.is_file():
        fix = "Download its config.json (the weights are not needed) and give the folder or the file."
        raise ModelError(model, "the model is not on this machine.", fix)
    shape = read_shape(config)
    files = sorted(config.parent.glob("*.safetensors"))
    try:
        return shape.with_counted(sum(count_parameters(file) for file in files)) if files and not shape.exact else shape
    except (OSError, ValueError, KeyError):
        return shape  # damaged weights are reported elsewhere


def card_of(machine: Machine) -> Card | None:
    """This machine's GPU with the least memory; None without a GPU."""
    if machine.kind != "cuda" or not machine.memory_bytes:
        return None
    least = min(range(len(machine.memory_bytes)), key=lambda index: machine.memory_bytes[index])
    return gpus.like(machine.names[least] if machine.names else "", machine.memory_bytes[least])


def host_memory() -> int:
    """The memory of this machine in bytes."""
    return int(psutil.virtual_memory().total)


@dataclass(frozen=True)
class Found:
    """The forecast, configurations that fit (`advice`), and assumptions (`notes`)."""

    forecast: Forecast
    advice: list[Advice]
    notes: list[str]
    worst: Worst | None = None


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
    if config.method.adapts and shape.decoder.experts:
        notes.append("Adapters on experts are not counted; a simulation counts them.")
    if not shape.exact:
        notes.append(
            f"{shape.model_type or 'This architecture'} is assumed to have the layers of Llama; a simulation uses its real layers."
        )
    if calibration:
        notes.append(calibration.note)
    if card is None:
        return Found(found, [], notes, top)
    advice = advise(
        config, shape, card, batch=batch, host_limit_bytes=host_bytes, nvme=bool(config.nvme_path), slack=slack
    )
    if not found.fits:
        advice += _shorter(config, rows, lambda asked: of(asked)[0])
    return Found(found, advice, notes, top)


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
        "notes": found.notes,
        "worst_batch": _place(found.worst) if found.worst else None,
    }


def numbers(found: Forecast) -> dict[str, Any]:
    """A forecast as JSON."""
    return {
        "fits": found.fits,
        "reasons": found.reasons,
        "peak_bytes": found.peak_bytes,
        "moment": found.moment,
        "parts": found.parts,
        "moments": found.moments,
        "host_bytes": found.host_bytes,
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

    `peak_bytes` and `parts` are what torch would count; `fits` adds the forecast's context and slack.
    """
    batch, worst, pairs = found.forecast.batch, found.worst, 2 if config.task.pairs else 1
    lengths = worst.lengths if worst else [batch.length] * (batch.rows // pairs)
    answers = worst.answers if worst else [batch.target_length or batch.length] * len(lengths)
    seq2seq = config.task is Task.SEQ2SEQ
    given: dict[str, Any] = {"targets": answers} if seq2seq else {"labeled": answers}
    device = "cuda" if card else "cpu"
    done = simulating.simulate(config, resolved(config.precision, card), lengths, device=device, **given)
    if "problem" in done or card is None:
        return done
    besides = found.forecast.peak_bytes - found.forecast.allocated_bytes
    limit = found.forecast.limit_bytes
    return done | {"besides_bytes": besides, "fits": limit is None or done["peak_bytes"] + besides <= limit}


def _place(worst: Worst) -> dict[str, Any]:
    return {name: value for name, value in asdict(worst).items() if name != "batch"}
