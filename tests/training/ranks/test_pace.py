"""A rank that is slower than the others, or that stops while they wait, is named."""

import socket
from pathlib import Path

import pytest
import tiny
from trainer_process import start_with_slow_rank

from training.ranks.pace import Straggler, behind, stragglers
from training.run_folder.events import Metrics, Note


@pytest.mark.train
def test_a_slow_rank_and_a_hung_rank_are_named_while_the_run_trains(tmp_path: Path) -> None:
    run = start_with_slow_rank(
        tmp_path / "run",
        tiny.make_model(tmp_path / "model"),
        tiny.make_data(tmp_path / "rows.jsonl"),
        strategy="ddp",
        num_processes=2,
        micro_batch_size=2,
        max_steps=42,
        eval_split=0,
        answer_rows=0,
    )
    hung = run.wait_for(lambda event: isinstance(event, Note) and "no progress in step 25" in event.message)
    (tmp_path / "run" / "continue").touch()
    assert run.finish() == 0, run.log()
    warnings = [event.message for event in run.of(Note) if event.level == "warning"]
    assert isinstance(hung, Note)
    assert hung.message.startswith(f"Rank 1 on node {socket.gethostname()} has made no progress")
    (slow,) = [message for message in warnings if "slower" in message]
    assert f"Rank 1 on node {socket.gethostname()} is " in slow and "steps 1 to 20" in slow
    paces = [event for event in run.of(Metrics) if "own_seconds" in event.values]
    assert [(event.rank, event.step) for event in sorted(paces, key=lambda one: (one.step, one.rank or 0))] == [
        (0, 20),
        (1, 20),
        (0, 40),
        (1, 40),
    ]


def test_a_straggler_is_compared_with_the_median_of_the_others() -> None:
    assert stragglers([0.50, 0.51, 0.91, 0.50]) == [Straggler(2, 0.91, 0.50)]
    assert stragglers([0.5, 0.9]) == [Straggler(1, 0.9, 0.5)]
    assert stragglers([0.50, 0.51, 0.70, 0.50]) == []


def test_a_difference_of_milliseconds_is_no_straggler() -> None:
    assert stragglers([0.005, 0.005, 0.02]) == []


def test_the_ranks_that_the_others_wait_for_are_behind() -> None:
    ahead, late = (40, 19, "training"), (39, 19, "training")
    assert behind({0: ahead, 1: late, 2: ahead}) == [1]
    assert behind({0: ahead, 1: ahead}) == []


def test_a_rank_that_saves_is_not_hung() -> None:
    assert behind({0: (39, 19, "saving"), 1: (40, 19, "training")}) == []
