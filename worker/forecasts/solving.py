"""The most that fits (training/forecast/solve.py) for a run, by formula, then confirmed by simulated steps."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from training.config.choices import Task
from training.config.run_config import RunConfig
from training.forecast import solve
from training.forecast.forecast import Forecast
from training.forecast.formula.sizes import resolved
from training.forecast.gpus import Card
from training.forecast.solve import Solution, Wanted
from training.model_info.shape import ModelShape
from worker.allowed_paths import with_model_path
from worker.forecasts import calibration, prices
from worker.forecasts.forecast import card_facts, forecast_only
from worker.forecasts.prices import Prices
from worker.forecasts.worst_batch import RowLengths
from worker.machine import programs
from worker.machine.programs import Limits, ProgramError

_LIMITS = Limits(12 * 2**30, seconds=300, file_bytes=64 * 2**20)
_SIMULATED = (Wanted.MAX_LENGTH, Wanted.MICRO_BATCH_SIZE, Wanted.LORA_R)


@dataclass(frozen=True)
class Problem:
    """A run, and where it shall fit: its model's shape, its GPU (None: CPU), the tokens of its rows and the host's memory."""

    config: RunConfig
    shape: ModelShape
    card: Card | None
    rows: RowLengths | None = None
    host_bytes: int | None = None
    positions: int | None = None


def solved(
    problem: Problem, wanted: Iterable[Wanted], price: Prices | None = None, *, simulate: bool = False
) -> list[Solution]:
    """An answer to each question. With `simulate` the border is confirmed, and moved if need be, by simulated steps."""
    slacks: dict[str, calibration.Calibration | None] = {}

    def forecast(config: RunConfig, card: Card | None) -> Forecast:
        name = card.name if card else ""
        known = slacks[name] if name in slacks else slacks.setdefault(name, calibration.known(card))
        return forecast_only(
            config, problem.shape, card, rows=problem.rows, host_bytes=problem.host_bytes, calibration=known
        )[0]

    order = prices.cheapest_first(price) if price else None
    answers = []
    for one in wanted:
        found = solve.solve(
            one, problem.config, problem.card, forecast, longest=_longest(problem), cheapest_first=order
        )
        if simulate and one in _SIMULATED and (guess := _guess(found, problem.config)):
            found = _simulated(found, guess, problem, forecast)
        answers.append(found)
    return answers


def _longest(problem: Problem) -> int:
    """The length beyond which nothing changes."""
    rows = int(problem.rows.lengths.max()) if problem.rows is not None and len(problem.rows.lengths) else solve.LONGEST
    return min(rows, problem.positions or solve.LONGEST)


def _guess(found: Solution, config: RunConfig) -> int:
    """Where simulated steps begin: at the formula's answer, or at the present value if the formula cannot say; 0: nowhere."""
    if isinstance(found.value, int):
        return found.value
    return int(getattr(config, found.wanted.value)) if found.forecast and found.forecast.unknown else 0


def _simulated(found: Solution, guess: int, problem: Problem, forecast: solve.Forecasting) -> Solution:
    """The solution that simulated steps confirm; unchanged if no step can be simulated."""
    expected = found.forecast
    if expected is None or expected.limit_bytes is None:
        return found
    besides = expected.parts.get("context", 0)  # 0 on CPU, where a limit counts tensors
    search = {
        "request": _request(problem, found), "wanted": found.wanted.value, "guess": guess,
        "step": solve.steps_of(found.wanted), "most": _most(found, problem), "limit_bytes": expected.limit_bytes - besides,
    }  # fmt: skip
    try:
        answer = programs.run_for_json(
            programs.LARGEST, ["--request", "-"], _LIMITS, text=json.dumps(search), variables=programs.HUB_WITH_TOKEN
        )
    except ProgramError:
        return found
    if "problem" in answer:
        return found
    if not answer["value"]:
        reason = "A simulated step does not fit with the least value."
        return Solution(found.wanted, None, {}, expected, problem.card, reason, confirmed=True)
    value = int(answer["value"])
    changes = solve.changes_for(found.wanted, problem.config, value)
    again = forecast(problem.config.model_copy(update=changes), problem.card)
    peak = int(answer["peaks"].get(str(value), 0)) + besides
    most = value == _most(found, problem)
    return Solution(found.wanted, value, changes, again, problem.card, "", most, confirmed=True, simulated_bytes=peak)


def _most(found: Solution, problem: Problem) -> int:
    step = solve.steps_of(found.wanted)
    longest = max(-(-_longest(problem) // step), 1) * step
    return {Wanted.MAX_LENGTH: longest, Wanted.MICRO_BATCH_SIZE: solve.MOST_ROWS}.get(found.wanted, solve.HIGHEST_RANK)


def _request(problem: Problem, found: Solution) -> dict[str, Any]:
    """The simulation of the run on rows of the largest batch; rows of unknown data have the maximum length."""
    config, rows = problem.config, problem.rows
    whole = _most(found, problem) if found.wanted is Wanted.MAX_LENGTH and rows is None else config.max_length
    count = config.micro_batch_size
    if rows is not None and len(rows.lengths):
        longest = sorted((int(length) for length in rows.lengths), reverse=True)[:count]
        lengths = (
            longest if found.wanted is Wanted.MAX_LENGTH else [min(length, config.max_length) for length in longest]
        )
    else:
        lengths = [whole] * count
    answers = [config.max_target_length or config.max_length] * len(lengths) if config.task is Task.SEQ2SEQ else []
    return {
        "config": with_model_path(config).model_dump(mode="json"), "lengths": lengths, "targets": answers,
        "labeled": [] if answers else lengths, "device": "cuda" if problem.card else "cpu",
        "precision": resolved(config.precision, problem.card).value, **card_facts(problem.card),
    }  # fmt: skip


def as_document(found: Solution) -> dict[str, Any]:
    """A solution as JSON, in bytes."""
    return {
        "setting": found.wanted.value,
        "value": found.value,
        "changes": found.changes,
        "bounded": found.bounded,
        "confirmed": found.confirmed,
        "reason": found.reason,
        "peak_bytes": found.peak_bytes,
        "limit_bytes": found.forecast.limit_bytes if found.forecast else None,
    }
