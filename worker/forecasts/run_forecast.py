"""The forecast stored with each run, and its comparison with the measurement."""

from typing import Any

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast.forecast import Forecast
from training.forecast.roofline import roofline
from training.model_info.config_json import ModelError
from worker.allowed_paths import find_path
from worker.forecasts import calibration, speed, worst_batch
from worker.forecasts import forecast as forecasting

_STAYING = ("weights", "optimizer", "context", "slack")


def of_run(config: RunConfig, machine: Machine) -> dict[str, Any] | None:
    """The forecast of a run on this machine, in bytes; None if nothing comparable will be measured or the model's shape is
    unknown.

    On CPU, tensors are counted only under a memory limit. `moving_bytes` are allocated and freed within a step.
    """
    card = forecasting.card_of(machine)
    if card is None and config.memory_limit is None:
        return None
    model = str(find_path(config.model) or config.model)
    try:
        shape = forecasting.shape_at(model, config.revision, config.task)
    except ModelError:
        return None
    if shape.unknown:
        return None
    rows, known = worst_batch.counted(config, model), calibration.known(card)
    found = forecasting.forecast_run(config, shape, card, rows=rows, calibration=known).forecast
    ideal = speed.stored(roofline(config, shape, card, speed.mean_batch(config, rows))) if card else None
    return {
        "card": card.name if card else "cpu",
        "roofline": ideal,
        "fits": found.fits,
        "peak_bytes": found.peak_bytes,
        "allocated_bytes": found.allocated_bytes,
        "moving_bytes": sum(size for name, size in found.parts.items() if name not in _STAYING),
        "limit_bytes": found.limit_bytes,
        "parts": found.parts,
    }


def verdict(config: RunConfig, machine: Machine) -> Forecast | None:
    """Whether a run fits in the memory of this machine, as New run, `lathe run` and REST tell it; None if the hardware or the
    model's shape is unknown, or the formula cannot say."""
    if machine.kind == "cuda" and not machine.names:
        return None  # any GPU of a cluster
    card, model = forecasting.card_of(machine), str(find_path(config.model) or config.model)
    try:
        shape = forecasting.shape_at(model, config.revision, config.task)
    except ModelError:
        return None
    rows, known = worst_batch.counted(config, model), calibration.known(card)
    forecast, _ = forecasting.forecast_only(
        config, shape, card, rows=rows, host_bytes=forecasting.host_memory(), calibration=known
    )
    return None if forecast.unknown else forecast


def compared(forecast: dict[str, Any] | None, summary: dict[str, Any] | None) -> list[dict[str, Any]]:
    """For each rank: `predicted_bytes` and `measured_bytes` of tensors at the peak, and the allocator's `reserved_bytes`."""
    memory = (summary or {}).get("memory") or {}
    peaks = memory.get("peak_bytes") or []
    reserved = memory.get("reserved_bytes") or [None] * len(peaks)
    if not forecast:
        return []
    return [
        {"rank": rank, "predicted_bytes": forecast["allocated_bytes"], "measured_bytes": peak, "reserved_bytes": held}
        for rank, (peak, held) in enumerate(zip(peaks, reserved, strict=True))
    ]
