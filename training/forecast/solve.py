"""The most that fits: the largest value of a setting with which the forecast still fits, by monotone search. No torch.

More length, rows, rank and fewer GPUs never take less memory in the formula, so that a search by halves finds the border.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from training.config.choices import Strategy, Wanted
from training.config.run_config import RunConfig
from training.forecast.forecast import Forecast
from training.forecast.gpus import CARDS, Card
from training.rules import problems
from training.tables import Otherwise, only

LENGTH_STEP = 64
RANK_STEP = 8
LONGEST = 2**20
MOST_ROWS = 4096
HIGHEST_RANK = 1024
TRIES = 24
COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_SHARDING = (Strategy.DDP, Strategy.ZERO2, Strategy.ZERO3)


@dataclass(frozen=True)
class Solution:
    """The answer to one question: the `value` (None: nothing fits, see `reason`), the changes of settings that apply it, and its
    forecast. `bounded` is True if the value is the largest that makes sense, not the largest that fits.

    `peak_bytes` is the memory on each rank with that value, of the forecast or of a simulated step. `confirmed` is True if
    simulated steps found the value, None if none was simulated.
    """

    wanted: Wanted
    value: int | str | None
    changes: dict[str, Any]
    forecast: Forecast | None = None
    card: Card | None = None
    reason: str = ""
    bounded: bool = False
    confirmed: bool | None = None
    simulated_bytes: int | None = None

    @property
    def peak_bytes(self) -> int | None:
        return self.simulated_bytes or (self.forecast.peak_bytes if self.forecast else None)


Forecasting = Callable[[RunConfig, Card | None], Forecast]
"""Forecasts a configuration on a GPU (None: on CPU)."""


def solve(
    wanted: Wanted,
    config: RunConfig,
    card: Card | None,
    forecast: Forecasting,
    *,
    longest: int = LONGEST,
    cheapest_first: Sequence[Card] | None = None,
) -> Solution:
    """The most that fits on `card`, or the fewest or cheapest GPUs. All other settings stay, and so does the global batch size
    where it can be divided.

    `longest` is the length beyond which nothing changes: of the model's positions or of the longest row. `cheapest_first` are
    the GPUs to choose from; by default the known ones, the smallest first.
    """
    match wanted:
        case Wanted.GPUS:
            return fewest_gpus(config, card, forecast)
        case Wanted.GPU:
            return cheapest_gpu(config, forecast, cheapest_first or by_memory())
        case Wanted.LORA_R if not config.method.is_lora:
            return Solution(wanted, None, {}, reason=f"Method {config.method.value} has no rank.")
        case _:
            return _largest(wanted, config, card, forecast, longest)


def largest(fits: Callable[[int], bool], step: int, most: int) -> int:
    """The largest multiple of `step`, at most `most` rounded down, for which `fits` holds; 0 if there is none. `fits` holds
    below some number and not above it."""
    low, high = 0, 1  # low fits
    top = max(most // step, 0)
    while high <= top and fits(high * step):
        low, high = high, 2 * high
    high = min(high, top + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * step) else (low, middle)
    return low * step


def border(peak: Callable[[int], int], guess: int, step: int, most: int, limit: int) -> int:
    """The largest multiple of `step` up to `most` whose peak is at most `limit`, 0 if there is none; found with few peaks, each of
    which may take seconds. `peak` must grow with the value; after TRIES rounds the best value so far is the answer."""
    low, high = 0, most + step  # fits, does not
    value = min(max(guess // step * step, step), most)
    for _ in range(TRIES):
        before, taken = value, peak(value)
        low, high = (value, high) if taken <= limit else (low, value)
        if high - low <= step:
            break
        other = before + step if taken <= limit else before - step
        if low < other < high:
            slope = (peak(other) - taken) / (other - before)
            low, high = (max(low, other), high) if peak(other) <= limit else (low, min(high, other))
            if high - low <= step:
                break
            value = before + int((limit - taken) / slope) // step * step if slope > 0 else (low + high) // 2
        else:
            value = (low + high) // 2
        value = min(max(value // step * step, low + step), high - step)
    return low


def changes_for(wanted: Wanted, config: RunConfig, value: int) -> dict[str, Any]:
    """The changes of settings that give one of them this value; a larger micro batch needs less accumulation."""
    if wanted is not Wanted.MICRO_BATCH_SIZE:
        return {wanted.value: value}
    together = config.micro_batch_size * config.gradient_accumulation_steps
    return {"micro_batch_size": value, "gradient_accumulation_steps": max(1, round(together / value))}


def steps_of(wanted: Wanted) -> int:
    """The step between two values of a setting that are tried."""
    return Otherwise(1, {Wanted.MAX_LENGTH: LENGTH_STEP, Wanted.LORA_R: RANK_STEP})[wanted]


def most_of(wanted: Wanted, longest: int) -> int:
    """The largest value of a setting that makes sense; `longest` is the length beyond which nothing changes."""
    rounded = max(-(-longest // LENGTH_STEP), 1) * LENGTH_STEP
    return only({Wanted.MAX_LENGTH: rounded, Wanted.MICRO_BATCH_SIZE: MOST_ROWS, Wanted.LORA_R: HIGHEST_RANK})[wanted]


def _largest(wanted: Wanted, config: RunConfig, card: Card | None, forecast: Forecasting, longest: int) -> Solution:
    step = steps_of(wanted)
    most = most_of(wanted, longest)

    def of(value: int) -> Forecast:
        return forecast(config.model_copy(update=changes_for(wanted, config, value)), card)

    if of(step).limit_bytes is None and card is None:
        return Solution(wanted, None, {}, reason="There is no limit: choose a GPU, or set memory_limit.")
    if (least := of(step)).unknown:
        return Solution(wanted, None, {}, least, card, least.reasons[0])
    value = largest(lambda amount: of(amount).fits, step, most)
    if not value:
        reason = f"{wanted.value} {step:,} does not fit either. {' '.join(least.reasons)}"
        return Solution(wanted, None, {}, least, card, reason)
    return Solution(wanted, value, changes_for(wanted, config, value), of(value), card, bounded=value == most)


def fewest_gpus(config: RunConfig, card: Card | None, forecast: Forecasting) -> Solution:
    """The fewest GPUs on which the run fits, with its own strategy if that is enough, else with the first of DDP, ZeRO-2 and
    ZeRO-3 that is."""
    if card is None:
        return Solution(Wanted.GPUS, None, {}, reason="Choose a GPU.")
    tried = None
    for count in COUNTS:
        for changes in _on_gpus(config, count):
            changed = config.model_copy(update=changes)
            if problems(changed, card.machine(count)):
                continue
            tried = forecast(changed, card)
            if tried.fits:
                return Solution(Wanted.GPUS, count, _plain(config, changes), tried, card)
    reason = f"Does not fit on {COUNTS[-1]} GPUs either. {' '.join(tried.reasons) if tried else ''}".strip()
    return Solution(Wanted.GPUS, None, {}, tried, card, reason)


def _on_gpus(config: RunConfig, count: int) -> Iterator[dict[str, Any]]:
    """Yields the changes for this number of GPUs, with as much accumulation as keeps the global batch size."""
    rows = config.global_batch_size
    accumulation, rest = divmod(rows, count * config.micro_batch_size)
    batch = {} if rest or not accumulation else {"gradient_accumulation_steps": accumulation}
    if count == 1:
        own = config.strategy.zero_stage is not None
        yield {"num_processes": 1, "strategy": config.strategy if own else Strategy.SINGLE, **batch}
        return
    strategies = [] if config.strategy is Strategy.SINGLE else [config.strategy]
    for strategy in dict.fromkeys((*strategies, *_SHARDING)):
        yield {"num_processes": count, "strategy": strategy, **batch}


def _plain(config: RunConfig, changes: dict[str, Any]) -> dict[str, Any]:
    values = {name: value for name, value in changes.items() if getattr(config, name) != value}
    return {name: getattr(value, "value", value) for name, value in values.items()}


def by_memory() -> list[Card]:
    """The known GPUs, the smallest memory first, of equal ones the slower."""
    return sorted(CARDS.values(), key=lambda card: (card.memory_bytes, card.flops))


def cheapest_gpu(config: RunConfig, forecast: Forecasting, cheapest_first: Sequence[Card]) -> Solution:
    """The first of these GPUs on which the run fits."""
    tried = None
    for card in cheapest_first:
        if problems(config, card.machine(config.num_processes)):
            continue
        tried = forecast(config, card)
        if tried.fits:
            return Solution(Wanted.GPU, card.name, {}, tried, card)
    reason = "No known GPU has enough memory." if tried else "No known GPU supports these settings."
    return Solution(Wanted.GPU, None, {}, tried, None, reason)
