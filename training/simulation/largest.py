"""Finds the largest value of a setting with which a simulated step fits: `python -m training.simulation.largest --request FILE`.

The request holds the run and its batch, as training/simulation/simulate.py takes them, and where to search. A guess that is off by
little needs three or four simulations, since the peak grows nearly in proportion to the setting.
"""

import argparse
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import TypeAdapter

from training.config.run_config import RunConfig
from training.errors import UserError
from training.forecast.solve import Wanted, border, changes_for
from training.simulation.batches import Request
from training.simulation.simulate import simulate


@dataclass(frozen=True)
class Search:
    """What to look for: the setting `wanted`, a first `guess`, the `step` between two values, the most that makes sense, and the
    bytes that a step may take."""

    request: Request
    wanted: Wanted
    guess: int
    step: int
    most: int
    limit_bytes: int


@dataclass(frozen=True)
class Found:
    """The largest value that fits (0: none), and the memory in bytes that a simulated step with each value needs."""

    value: int
    peaks: dict[int, int]


def largest(search: Search) -> Found:
    """Returns the largest value whose simulated step fits.

    Raises:
        UserError: as `simulate`.
    """
    peaks: dict[int, int] = {}

    def peak(value: int) -> int:
        if value not in peaks:
            peaks[value] = simulate(_with(search, value)).needed_bytes
        return peaks[value]

    return Found(border(peak, search.guess, search.step, search.most, search.limit_bytes), peaks)


def _with(search: Search, value: int) -> Request:
    """Returns the request with another value of the setting, and the rows that it then has."""
    request, config = search.request, search.request.config
    changed = RunConfig.model_validate(config.model_dump(mode="json") | changes_for(search.wanted, config, value))
    if search.wanted is Wanted.MAX_LENGTH:
        cut = [min(length, value) for length in request.lengths]
        answers = [min(length, value) for length in request.labeled]
        targets = [min(length, config.max_target_length or value) for length in request.targets]
        return replace(request, config=changed, lengths=cut, labeled=answers, targets=targets)
    if search.wanted is Wanted.MICRO_BATCH_SIZE:

        def rows(lengths: list[int]) -> list[int]:
            return (lengths * -(-value // max(len(lengths), 1)))[:value]

        return replace(
            request,
            config=changed,
            lengths=rows(request.lengths),
            labeled=rows(request.labeled),
            targets=rows(request.targets),
        )
    return replace(request, config=changed)


def main() -> None:
    parser = argparse.ArgumentParser(description="Print the largest value of a setting whose step fits, as JSON.")
    parser.add_argument("--request", type=Path, required=True, help="The search as JSON; - for stdin.")
    path = parser.parse_args().request
    text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    try:
        found = largest(TypeAdapter(Search).validate_json(text))
        answer: dict[str, object] = {"value": found.value, "peaks": found.peaks}
    except UserError as error:
        answer = {"problem": vars(error.problem)}
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
