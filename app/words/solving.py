"""The most that fits, and time and cost of a run, as text for pages, the command line and REST."""

from app.words import numbers
from training.forecast.solve import Solution, Wanted
from training.units import byte_size
from worker.forecasts.speed import Range, Speed

QUESTIONS = {
    Wanted.MAX_LENGTH: "Maximum length",
    Wanted.MICRO_BATCH_SIZE: "Micro batch size",
    Wanted.LORA_R: "LoRA rank",
    Wanted.GPUS: "Fewest GPUs",
    Wanted.GPU: "Cheapest GPU",
}


def value_text(found: Solution) -> str:
    """The answer in a few words."""
    if found.value is None:
        return "none"
    if found.wanted is Wanted.GPU:
        return found.card.label if found.card else str(found.value)
    number = f"{found.value:,}" if isinstance(found.value, int) else found.value
    unit = {Wanted.MAX_LENGTH: " tokens", Wanted.MICRO_BATCH_SIZE: " rows"}.get(found.wanted, "")
    return f"{number}{unit}"


def memory_text(found: Solution) -> str:
    """What the answer takes, or why there is none, and how it is known."""
    if found.value is None or found.forecast is None:
        return found.reason
    limit = f" of {byte_size(found.forecast.limit_bytes)}" if found.forecast.limit_bytes else ""
    how = "Confirmed by a simulated step." if found.confirmed else "By formula."
    bounded = " More makes no difference." if found.bounded else ""
    return f"{byte_size(found.peak_bytes)}{limit}. {how}{bounded}"


def solved_page(solutions: list[Solution]) -> str:
    """The answers as a table."""
    rows = [["The most that fits", "", "Settings to change", ""]]
    for found in solutions:
        changes = ", ".join(f"{name}={value}" for name, value in found.changes.items()) or "none"
        rows.append([QUESTIONS[found.wanted], value_text(found), changes, memory_text(found)])
    return numbers.table(rows)


def speed_rows(speed: Speed) -> list[tuple[str, str]]:
    """The known ranges as pairs of a name and a text."""
    rows = [
        ("Speed", _range(speed.tokens_per_second, "tokens/s", 0)),
        ("Optimizer step", _range(speed.seconds_per_step, "s")),
        ("Steps", f"{speed.steps:,}" if speed.steps else ""),
        ("Time", _hours(speed.hours)),
        ("Energy of the GPUs", _range(speed.kwh, "kWh")),
        ("Cost", _range(speed.cost, "", 2)),
    ]
    return [(name, text) for name, text in rows if text]


def speed_page(speed: Speed) -> str:
    """Time, energy and cost as text."""
    lines = [numbers.table([list(row) for row in speed_rows(speed)])] if speed.tokens_per_second else []
    return "\n".join([*lines, *speed.notes])


def _range(values: Range | None, unit: str, digits: int | None = None) -> str:
    if values is None:
        return ""
    low, high = (_number(value, digits) for value in values)
    text = low if low == high else f"{low} to {high}"
    return f"{text} {unit}".strip()


def _number(value: float, digits: int | None) -> str:
    if digits is None:
        digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 4
    return f"{value:,.{digits}f}"


def _hours(hours: Range | None) -> str:
    if hours is None:
        return ""
    low, high = (numbers.duration(value * 3600) for value in hours)
    return low if low == high else f"{low} to {high}"
