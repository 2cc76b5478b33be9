"""The most that fits (training/forecast/solve.py) for a run, by formula, then confirmed by simulated steps."""

import json
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

from training.config.choices import Wanted
from training.config.run_config import RunConfig
from training.forecast import solve
from training.forecast.forecast import Forecast
from training.forecast.gpus import Card
from training.forecast.solve import Solution
from worker.forecasts import prices
from worker.forecasts.calibration import calibrate
from worker.forecasts.forecast import Setup, estimate_run
from worker.forecasts.prices import Prices
from worker.forecasts.simulating import limits_of, request_of
from worker.machine import programs
from worker.machine.programs import ProgramError

_SIMULATED = (Wanted.MAX_LENGTH, Wanted.MICRO_BATCH_SIZE, Wanted.LORA_R)


def solved(
    setup: Setup, questions: Iterable[Wanted], price: Prices | None = None, *, simulate: bool = False
) -> list[Solution]:
    """An answer to each question. With `simulate` the border is confirmed, and moved if need be, by simulated steps."""
    calibration = cache(calibrate)

    def forecast(config: RunConfig, card: Card | None) -> Forecast:
        placed = replace(setup, config=config, card=card, calibration=calibration(card))
        return estimate_run(placed, advises=False).forecast

    order = prices.cheapest_first(price) if price else None
    simulates = simulate and not setup.config.task.traits.samples
    answers = []
    for question in questions:
        config, card = setup.config, setup.card
        solution = solve.solve(question, config, card, forecast, longest=setup.longest, cheapest_first=order)
        if simulates and question in _SIMULATED and (guess := _guess(solution, setup.config)):
            solution = _simulated(solution, guess, setup, forecast)
        answers.append(solution)
    return answers


def _guess(solution: Solution, config: RunConfig) -> int:
    """Where simulated steps begin: at the formula's answer, or at the present value if the formula cannot say; 0: nowhere."""
    if isinstance(solution.value, int):
        return solution.value
    return int(getattr(config, solution.wanted.value)) if solution.forecast and solution.forecast.unknown else 0


def _simulated(solution: Solution, guess: int, setup: Setup, forecast: solve.Forecasting) -> Solution:
    """The solution that simulated steps confirm; unchanged if no step can be simulated."""
    expected = solution.forecast
    if expected is None or expected.limit_bytes is None:
        return solution
    besides = expected.parts.get("context", 0)  # 0 on CPU, where a limit counts tensors
    wanted = solution.wanted
    request = _request(setup, wanted)
    search = {
        "request": request, "wanted": wanted.value, "guess": guess, "step": solve.steps_of(wanted),
        "most": solve.most_of(wanted, setup.longest), "limit_bytes": expected.limit_bytes - besides,
    }  # fmt: skip
    try:
        answer = programs.run_for_json(programs.SIMULATE, ["--largest"], limits_of(request), text=json.dumps(search))
    except ProgramError:
        return solution
    if "problem" in answer:
        return solution
    if not answer["value"]:
        reason = "A simulated step does not fit with the least value."
        return Solution(wanted, None, {}, expected, setup.card, reason, confirmed=True)
    value = int(answer["value"])
    changes = solve.changes_for(wanted, setup.config, value)
    again = forecast(setup.config.model_copy(update=changes), setup.card)
    peak = int(answer["peaks"].get(str(value), 0)) + besides
    most = value == search["most"]
    return Solution(wanted, value, changes, again, setup.card, "", most, confirmed=True, simulated_bytes=peak)


def _request(setup: Setup, wanted: Wanted) -> dict[str, Any]:
    """The simulation of the run on rows of the largest batch; rows of unknown data have the maximum length."""
    config, rows = setup.config, setup.rows
    whole = config.max_length
    if wanted is Wanted.MAX_LENGTH and rows is None:
        whole = solve.most_of(wanted, setup.longest)
    count = config.micro_batch_size
    if rows is not None and len(rows.lengths):
        longest = sorted((int(length) for length in rows.lengths), reverse=True)[:count]
        cut = [min(length, config.max_length) for length in longest]
        lengths = longest if wanted is Wanted.MAX_LENGTH else cut
    else:
        lengths = [whole] * count
    answers = [config.max_target_length or config.max_length] * len(lengths) if config.task.traits.has_encoder else []
    labeled: dict[str, Any] = {"targets": answers, "labeled": [] if answers else lengths}
    return request_of(setup) | {"lengths": lengths} | labeled


def as_document(solution: Solution) -> dict[str, Any]:
    """A solution as JSON, in bytes."""
    names = ("value", "changes", "bounded", "confirmed", "reason", "peak_bytes")
    document = {"setting": solution.wanted.value} | {name: getattr(solution, name) for name in names}
    return document | {"limit_bytes": solution.forecast.limit_bytes if solution.forecast else None}
