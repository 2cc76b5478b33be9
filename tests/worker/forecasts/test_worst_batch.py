"""Predicts the step of the longest row. In a user report, a run failed at the same step each time, at half of it on twice the GPUs.

One row is far longer than the others. Where it comes is said before the run, and real runs on one rank and on two find it there.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tiny import make_model
from trainer_process import start_recorded

from training.tokens.store import open_store
from worker.datasets.token_report import report

pytestmark = pytest.mark.train

ROWS = 61
LONG_ROW = 23
SETTINGS = {
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 2,
    "epochs": 2,
    "max_steps": None,
    "eval_split": 4,
    "eval_steps": 0,
    "save_steps": 10,
    "save_total_limit": 10,
    "max_length": 480,
}
Runs = Callable[[int], tuple[Path, dict[str, Any]]]
Batch = tuple[int, int, int, int, int, int]  # rank, step, micro step, rows, tokens, sum of tokens


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("inputs")
    rows = [{"prompt": f"row {row}: ", "completion": "abc" * (1 + row % 5)} for row in range(ROWS)]
    rows[LONG_ROW]["completion"] = "x" * 400
    data = folder / "rows.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows))
    return make_model(folder / "model"), data


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, inputs: tuple[Path, Path]) -> Runs:
    """A run on this many ranks, and its prediction before the first step."""
    folder, known = tmp_path_factory.mktemp("runs"), {}

    def run(world: int) -> tuple[Path, dict[str, Any]]:
        if world not in known:
            run_dir = folder / str(world)
            trained = start_recorded(run_dir, *inputs, **settings(world))
            assert trained.finish() == 0, trained.log()
            (store,) = [path.parent for path in (run_dir / "tokens").glob("*/facts.json")]
            known[world] = run_dir, predicted(store, world)
        return known[world]

    return run


def settings(world: int) -> dict[str, Any]:
    return SETTINGS | {"num_processes": world, "strategy": "ddp" if world > 1 else "single"}


def predicted(store: Path, world: int) -> dict[str, Any]:
    shared = {"max_length": 480, "micro_batch": 2, "accumulation": 2, "world": world, "seed": 42, "epochs": 2}
    return report(open_store(store), **shared, eval_split=4)


def seen(run_dir: Path) -> list[Batch]:
    lines = [
        (int(file.stem.split("-")[1]), *map(int, line.split()))
        for file in run_dir.glob("batches-*.txt")
        for line in file.read_text().splitlines()
    ]
    return sorted(lines, key=lambda batch: (batch[1], batch[2], batch[0]))


@pytest.mark.parametrize("world", [1, 2])
def test_the_longest_row_trains_at_the_predicted_step_and_rank(runs: Runs, world: int) -> None:
    run_dir, predicted = runs(world)
    worst = [batch for batch in predicted["worst_batches"] if LONG_ROW + 1 in batch["rows"]]
    long = [batch for batch in seen(run_dir) if batch[4] > 400]
    assert sorted((batch["rank"], batch["step"], batch["micro"]) for batch in worst) == sorted(
        batch[:3] for batch in long
    )
    assert [batch["longest"] for batch in predicted["worst_batches"][:2]] == [409, 409]
    assert {batch["epoch"] for batch in worst} == {0, 1}


def test_every_batch_of_two_ranks_has_the_predicted_length(runs: Runs) -> None:
    run_dir, predicted = runs(2)
    result = {(rank, step, micro): tokens for rank, step, micro, _, tokens, _ in seen(run_dir)}
    assert len(result) == 2 * 2 * -(-(ROWS - 4) // 4)
    assert {
        (batch["rank"], batch["step"], batch["micro"]): batch["tokens"] for batch in predicted["worst_batches"]
    }.items() <= result.items()


def test_twice_the_ranks_halve_the_step(runs: Runs) -> None:
    single, double = (runs(world)[1]["worst_batches"][0] for world in (1, 2))
    assert (single["epoch"], double["epoch"]) == (0, 0)
    assert double["step"] == -(-single["step"] // 2)


def test_two_ranks_resume_in_the_second_epoch_with_the_next_batches(
    runs: Runs, inputs: tuple[Path, Path], tmp_path: Path
) -> None:
    whole, _ = runs(2)
    resumed = tmp_path / "resumed"
    for copied in ("checkpoints/checkpoint-10", "tokens"):
        shutil.copytree(whole / copied, resumed / copied)
    trained = start_recorded(resumed, *inputs, **settings(2))
    assert trained.finish() == 0, trained.log()
    assert seen(resumed) == [batch for batch in seen(whole) if batch[1] > 10]
