"""The forecast stored with each run, and its comparison with the measurement."""

from typing import Any

from training.config.machine import Machine
from training.forecast.forecast import Forecast
from training.forecast.gpus import Card, of_machine
from training.forecast.roofline import roofline
from training.model_info.config_json import ModelError
from worker.forecasts import forecast as forecasting
from worker.forecasts import speed
from worker.forecasts.forecast import Estimate
from worker.runs.settle import Settled

_STAYING = ("weights", "optimizer", "context", "slack")


def recorded(settled: Settled, machine: Machine) -> dict[str, Any] | None:
    """The forecast of a run on this machine as its row stores it, in bytes; None if nothing comparable will be measured or the
    model's shape is unknown.

    On CPU, tensors are counted only under a memory limit. `moving_bytes` are allocated and freed within a step.
    """
    card = of_machine(machine)
    if card is None and settled.config.memory_limit is None:
        return None
    estimate = _estimate(settled, card)
    if estimate is None or estimate.setup.shape.unknown:
        return None
    forecast, setup = estimate.forecast, estimate.setup
    ideal = roofline(setup.config, setup.shape, card, speed.mean_batch(setup)) if card else None
    return {
        "card": card.name if card else "cpu",
        "roofline": {"compute": ideal.compute, "moving": ideal.moving, "tokens": ideal.tokens} if ideal else None,
        "fits": forecast.fits,
        "peak_bytes": forecast.peak_bytes,
        "allocated_bytes": forecast.allocated_bytes,
        "moving_bytes": sum(size for name, size in forecast.parts.items() if name not in _STAYING),
        "limit_bytes": forecast.limit_bytes,
        "parts": forecast.parts,
    }


def verdict(settled: Settled, machine: Machine) -> Forecast | None:
    """Whether a run fits in the memory of this machine, as New run, `lathe run` and REST tell it; None if the hardware or the
    model's shape is unknown, or the formula cannot say."""
    if machine.kind == "cuda" and not machine.names:
        return None  # any GPU of a cluster
    estimate = _estimate(settled, of_machine(machine), forecasting.host_memory())
    return None if estimate is None or estimate.forecast.unknown else estimate.forecast


def _estimate(settled: Settled, card: Card | None, host_bytes: int | None = None) -> Estimate | None:
    try:
        return forecasting.estimate_settled(settled, card, host_bytes, advises=False)
    except ModelError:
        return None


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
