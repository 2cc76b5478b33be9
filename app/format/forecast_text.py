"""The memory forecast of a run, the most that fits, time and cost as text, for pages, the command line and REST."""

from typing import Any

from app.format import numbers
from app.texts import _, gettext_noop
from training.config.choices import Wanted
from training.config.fields import in_words
from training.config.run_config import RunConfig
from training.forecast.forecast import DOUBT, Forecast
from training.forecast.formula.moments import MOMENTS
from training.forecast.gpus import Card
from training.forecast.solve import Solution
from training.tables import Otherwise
from training.units import byte_size
from worker.forecasts.forecast import Estimate
from worker.forecasts.requested import Response
from worker.forecasts.speed import Range, Speed

PEAKS = {name: f"The peak is at {moment}." for name, moment in MOMENTS.items()}
"""The sentence on the moment of the peak, whole: languages put a moment into a sentence in ways of their own."""

QUESTIONS = {
    Wanted.MAX_LENGTH: gettext_noop("Maximum length"),
    Wanted.MICRO_BATCH_SIZE: gettext_noop("Micro batch size"),
    Wanted.LORA_R: gettext_noop("LoRA rank"),
    Wanted.GPUS: gettext_noop("Fewest GPUs"),
    Wanted.GPU: gettext_noop("Cheapest GPU"),
}


def response_page(response: Response) -> str:
    """The forecast as text, with the simulated step if there is one, speed and cost, and the most that fits if that was asked."""
    text = forecast_page(response.estimate)
    text += simulation_page(response.simulated) if response.simulated else ""
    solved = f"\n\n{solved_page(response.solved)}" if response.solved else ""
    return f"{text}\n\n{speed_page(response.speed)}{solved}"


def verdict(forecast: Forecast) -> str:
    """Whether a run fits, in a few words."""
    if forecast.close:
        return _("Fits, but is close to the limit") if forecast.fits else _("Does not fit, but is close to the limit")
    if forecast.unknown and not forecast.fits:
        return _("Cannot say without a simulation")
    return _("Fits") if forecast.fits else _("Does not fit")


def close_to_the_limit() -> str:
    """What to do about a forecast that is within its own error of the limit."""
    sentence = _("The limit is within {share} of the forecast, the error of the formula: a simulated step decides.")
    return sentence.format(share=f"{DOUBT:.0%}")


def of_limit(size: int | None, limit: int | None) -> str:
    """An amount of memory with its limit, if it has one: "3.0 GiB of 8.0 GiB"."""
    return _("{size} of {limit}").format(size=byte_size(size), limit=byte_size(limit)) if limit else byte_size(size)


def nothing_fits(card: Card | None) -> str:
    """What to do where no settings are proposed; on a CPU Lathe tries none."""
    if card is None:
        return _("Lower max_length or micro_batch_size, raise memory_limit, or choose a smaller model.")
    return _("No setting that Lathe tried fits. Use more or larger GPUs, a shorter max_length or a smaller model.")


def misfit(forecast: Forecast | None, config: RunConfig) -> str:
    """Why a run is not expected to fit, as a sentence beside Start, after `lathe run` and in REST; empty if it is."""
    if forecast is None or forecast.fits:
        return ""
    sentence = _("{verdict}: {memory} on each process, with {rows} x {length} tokens.").format(
        verdict=verdict(forecast),
        memory=of_limit(forecast.peak_bytes, forecast.limit_bytes),
        rows=config.micro_batch_size,
        length=f"{forecast.batch.length:,}",
    )
    doubt = [_("A simulated step decides: the forecast is close to the limit.")] if forecast.close else []
    return " ".join([sentence, *doubt])


def forecast_page(estimate: Estimate) -> str:
    """The forecast as text."""
    forecast, config, card = estimate.forecast, estimate.setup.config, estimate.setup.card
    hardware = f"{numbers.plural(config.num_processes, 'GPU', 'GPUs')}, {card.label}" if card else "CPU"
    share = numbers.percent(forecast.trainable_parameters / max(forecast.total_parameters, 1), 4)
    lines = [
        f"{verdict(forecast)}: {hardware}, {config.method}, {config.strategy}, "
        f"{config.micro_batch_size} x {forecast.batch.length:,} tokens.",
        *forecast.reasons,
        *([close_to_the_limit()] if forecast.close else []),
        "",
        numbers.table(_parts(estimate)),
        "",
        f"{forecast.trainable_parameters:,} of {forecast.total_parameters:,} parameters are trainable ({share}). "
        f"{PEAKS[forecast.moment]}",
        *estimate.notes,
    ]
    if estimate.first_step:
        lines.append(f"The first step that saves memory: {in_words(estimate.first_step)}.")
    if estimate.advice:
        heading = "Also fits, fastest first:" if forecast.fits else "Settings that fit, fastest first:"
        lines += ["", heading, numbers.table(_advice(estimate))]
    elif not forecast.fits and not forecast.unknown:
        lines += ["", nothing_fits(card)]
    return "\n".join(lines)


def simulation_page(done: dict[str, Any]) -> str:
    """The result of a simulation as text: its peak, the parts of the peak, and its place."""
    overhead = done.get("besides_bytes", 0)
    rows = [[name.capitalize(), byte_size(amount)] for name, amount in done["parts"].items() if amount]
    rows += [["Context and slack", byte_size(overhead)]] if overhead else []
    verdict = {True: "It fits.", False: "It does not fit.", None: ""}[done.get("fits")]
    rows.append(["Total", byte_size(done["peak_bytes"] + overhead)])
    where = (
        f"{done['module'] or 'the model'}, {done['function']} ({done['line']})" if done["line"] else done["operator"]
    )
    return f"\n\nSimulated step. {verdict} The peak is in the {done['phase']} pass of {where}.\n\n{numbers.table(rows)}"


def _parts(estimate: Estimate) -> list[list[str]]:
    forecast = estimate.forecast
    rows = [[name.capitalize(), byte_size(amount)] for name, amount in forecast.parts.items()]
    limit = f"of {byte_size(forecast.limit_bytes)}" if forecast.limit_bytes else ""
    rows = [["On each rank", ""], *rows, ["Total", byte_size(forecast.peak_bytes), limit]]
    host = f"of {byte_size(forecast.host_limit_bytes)}" if forecast.host_limit_bytes else ""
    if forecast.host_bytes:
        rows.append(["Host RAM, all ranks", byte_size(forecast.host_bytes), host])
        at_host = [[f"  while {name}", byte_size(amount)] for name, amount in forecast.host_moments.items()]
        rows += at_host if len(at_host) > 1 else []
    if forecast.nvme_bytes:
        rows.append(["NVMe, all ranks", byte_size(forecast.nvme_bytes)])
    width = max(len(row) for row in rows)
    return [row + [""] * (width - len(row)) for row in rows]


def _advice(estimate: Estimate) -> list[list[str]]:
    rows = [["Speed", "Each rank", "Host", "Settings to change", "Cost"]]
    for advice in estimate.advice:
        changes = ", ".join(f"{name}={value}" for name, value in advice.changes.items()) or "none"
        device, host = byte_size(advice.forecast.peak_bytes), byte_size(advice.forecast.host_bytes)
        rows.append([f"{advice.relative_speed:.0%}", device, host, changes, advice.cost])
    return rows


_AMOUNTS = Otherwise(
    "{number}",
    {Wanted.MAX_LENGTH: gettext_noop("{number} tokens"), Wanted.MICRO_BATCH_SIZE: gettext_noop("{number} rows")},
)


def value_text(solution: Solution) -> str:
    """The answer in a few words."""
    if solution.value is None:
        return _("none")
    if solution.wanted is Wanted.GPU:
        return solution.card.label if solution.card else str(solution.value)
    number = f"{solution.value:,}" if isinstance(solution.value, int) else str(solution.value)
    return _(_AMOUNTS[solution.wanted]).format(number=number)


def memory_text(solution: Solution) -> str:
    """What the answer takes, or why there is none, and how it is known."""
    if solution.value is None or solution.forecast is None:
        return solution.reason
    how = _("Confirmed by a simulated step.") if solution.confirmed else _("By formula.")
    bounded = [_("More makes no difference.")] if solution.bounded else []
    return " ".join([f"{of_limit(solution.peak_bytes, solution.forecast.limit_bytes)}.", how, *bounded])


def solved_page(solutions: list[Solution]) -> str:
    """The answers as a table."""
    rows = [["The most that fits", "", "Settings to change", ""]]
    for solution in solutions:
        changes = ", ".join(f"{name}={value}" for name, value in solution.changes.items()) or "none"
        rows.append([_(QUESTIONS[solution.wanted]), value_text(solution), changes, memory_text(solution)])
    return numbers.table(rows)


def speed_rows(speed: Speed) -> list[tuple[str, str]]:
    """The known ranges as pairs of a name and a text."""
    rows = [
        (_("Speed"), _range(speed.tokens_per_second, "tokens/s", 0)),
        (_("Optimizer step"), _range(speed.seconds_per_step, "s")),
        (_("Steps"), f"{speed.steps:,}" if speed.steps else ""),
        (_("Time"), _hours(speed.hours)),
        (_("Energy of the GPUs"), _range(speed.kwh, "kWh")),
        (_("Cost"), _range(speed.cost, "", 2)),
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
    text = _between(low, high)
    return f"{text} {unit}".strip()


def _number(value: float, digits: int | None) -> str:
    if digits is None:
        digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 0.1 else 4
    return f"{value:,.{digits}f}"


def _hours(hours: Range | None) -> str:
    if hours is None:
        return ""
    low, high = (numbers.duration(value * 3600) for value in hours)
    return _between(low, high)


def _between(low: str, high: str) -> str:
    return low if low == high else _("{low} to {high}").format(low=low, high=high)
