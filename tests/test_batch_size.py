"""When memory runs out, the next attempt takes a smaller micro batch of the same global batch and goes on from the checkpoint."""

from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, make_model
from trainer_process import start, start_limited

from training import batch_size
from training.config import RunConfig
from training.events import CheckpointSaved, Failed, Note, Resumed, decode
from training.failure import is_out_of_memory
from training.report import Report
from worker.models import Status
from worker.outcome import Ending, judge
from worker.reports import Seen


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d", "auto_batch_size": True} | values)


@pytest.mark.parametrize(
    ("micro", "accumulation", "less"),
    [(8, 1, (4, 2)), (4, 3, (2, 6)), (6, 1, (3, 2)), (3, 1, (1, 3)), (5, 2, (2, 5)), (2, 1, (1, 2)), (1, 4, None)],
)
def test_less_is_half_or_the_next_that_keeps_the_global_batch(micro: int, accumulation: int, less: Any) -> None:
    found = batch_size.smaller(config(micro_batch_size=micro, gradient_accumulation_steps=accumulation))
    assert less == (found and (found.micro_batch_size, found.gradient_accumulation_steps))


def test_kto_keeps_two_rows_to_compare() -> None:
    assert batch_size.smaller(config(task="kto", micro_batch_size=2)) is None


def test_a_batch_is_kept_for_the_next_attempt_and_forgotten_where_another_is_asked_for(tmp_path: Path) -> None:
    asked = config(micro_batch_size=8)
    assert batch_size.after(RuntimeError("CUDA out of memory. Tried to allocate 2 GiB"), asked, tmp_path) == 4
    fitted = batch_size.recall(tmp_path, asked)
    assert (fitted.micro_batch_size, fitted.gradient_accumulation_steps) == (4, 2)
    assert "now 4, with gradient accumulation 2. The global batch stays 8." in batch_size.explain(asked, fitted)
    assert batch_size.recall(tmp_path, config(micro_batch_size=6)).micro_batch_size == 6
    assert batch_size.recall(tmp_path, config(micro_batch_size=8, auto_batch_size=False)).micro_batch_size == 8


def test_only_an_error_of_memory_asks_for_less(tmp_path: Path) -> None:
    import torch

    wrapped = ValueError("the trainer failed")
    wrapped.__cause__ = torch.OutOfMemoryError("no room")
    assert is_out_of_memory(wrapped)
    assert not is_out_of_memory(ValueError("shapes do not match"))
    assert batch_size.after(ValueError("shapes do not match"), config(), tmp_path) is None
    assert batch_size.after(wrapped, config(auto_batch_size=False), tmp_path) is None
    assert list(tmp_path.iterdir()) == []


def test_a_run_whose_next_batch_is_smaller_goes_on_by_itself() -> None:
    seen = Seen(saved_step=40)
    seen.failures.append(Failed(rank=1, error="OutOfMemoryError", message="no room", smaller_batch=4))
    verdict = judge(seen, Ending(exit_code=1))
    assert verdict.status is Status.QUEUED and not verdict.retry
    assert verdict.reason == "GPU memory ran out. It goes on from the checkpoint of step 40, with micro batches of 4."


def test_memory_that_ran_out_is_told_with_its_cure(tmp_path: Path) -> None:
    import torch

    Report(tmp_path, 0).failed(torch.OutOfMemoryError("CUDA out of memory."))
    failed = decode((tmp_path / "events.jsonl").read_bytes().splitlines()[-1])
    assert isinstance(failed, Failed) and "auto_batch_size" in failed.fix


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["ddp", "zero3"])
def test_one_rank_without_room_makes_all_go_on_smaller_and_learn_the_same(tmp_path: Path, strategy: str) -> None:
    inputs = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl")
    settings = {"strategy": strategy, "num_processes": 2, "micro_batch_size": 4, "save_steps": 2, "eval_steps": 0}
    whole = start(tmp_path / "whole", *inputs, **settings)
    assert whole.finish() == 0, whole.log()
    first = start_limited(tmp_path / "run", *inputs, **settings, auto_batch_size=True)
    assert first.finish() != 0
    (failure,) = [failed for failed in first.of(Failed) if failed.smaller_batch]
    assert failure.rank == 1 and failure.smaller_batch == 2
    assert first.of(CheckpointSaved)[-1].step == 2
    second = start_limited(tmp_path / "run", *inputs, **settings, auto_batch_size=True)
    assert second.finish() == 0, second.log()
    assert second.of(Resumed)[0].step == 2
    assert "The global batch stays 8" in second.of(Note)[0].message
    assert second.losses()[6] == pytest.approx(whole.losses()[6], rel=1e-3)
