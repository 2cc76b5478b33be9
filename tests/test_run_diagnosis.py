"""What the verdict on a failed attempt keeps of its diagnosis."""

from pathlib import Path

import pytest

from training.events import Failed
from worker.models import Status
from worker.outcome import Ending, Verdict, judge
from worker.reports import Seen
from worker.run_diagnosis import explained

ERROR = "RuntimeError: CUDA out of memory. Tried to allocate 8.00 GiB."
TRACE = f'Traceback (most recent call last):\n  File "model.py", line 7, in forward\n    scores = softmax(scores)\n{ERROR}'


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


def verdict_on(
    log: Path, *failures: Failed, begin: int = 0, code: int = 1, stepped: dict[str, object] | None = None, **config: object
) -> Verdict:
    seen = Seen(failures=list(failures))
    return explained(judge(seen, Ending(exit_code=code)), seen, dict(config), stepped or {}, log, begin)


def diagnosis_of(verdict: Verdict) -> dict[str, object]:
    assert verdict.error is not None
    found: dict[str, object] = verdict.error["diagnosis"]
    return found


def test_a_failed_attempt_keeps_the_diagnosis_of_what_it_printed(log: Path) -> None:
    log.write_text(TRACE)
    found = diagnosis_of(verdict_on(log, micro_batch_size=8, gradient_accumulation_steps=2))
    assert (found["cause"], found["evidence"]) == ("cuda_out_of_memory", [ERROR])
    assert found["changes"] == {"micro_batch_size": 4, "gradient_accumulation_steps": 4}


def test_what_was_stepped_down_already_is_not_advised_again_and_comes_along(log: Path) -> None:
    log.write_text(TRACE)
    least = {"micro_batch_size": 1, "gradient_accumulation_steps": 16, "gradient_checkpointing": "full"}
    alone = diagnosis_of(verdict_on(log, stepped=dict(least), micro_batch_size=8, gradient_accumulation_steps=2))
    assert alone["changes"] == {}
    assert not any("micro_batch_size" in fix or "gradient_checkpointing" in fix for fix in alone["fix"])  # type: ignore[attr-defined]
    shared = diagnosis_of(verdict_on(log, stepped=dict(least), micro_batch_size=8, num_processes=2))
    assert shared["changes"] == least | {"strategy": "zero3"}


def test_what_an_earlier_attempt_printed_is_not_this_ones_cause(log: Path) -> None:
    log.write_text(f"{TRACE}\n")
    begin = log.stat().st_size
    with log.open("a") as stream:
        stream.write("PermissionError: [Errno 13] Permission denied: '/scratch'\n")
    assert diagnosis_of(verdict_on(log, begin=begin))["cause"] == "permission_denied"


@pytest.mark.parametrize("printed", ["starting\n", None])
def test_a_traceback_that_was_only_reported_counts_with_its_rank(log: Path, printed: str | None) -> None:
    if printed is not None:
        log.write_text(printed)
    found = diagnosis_of(verdict_on(log, Failed(rank=3, error="RuntimeError", message=ERROR, traceback=TRACE)))
    assert (found["cause"], found["first_failed_rank"]) == ("cuda_out_of_memory", 3)


def test_what_the_trainer_said_of_a_persons_mistake_stands_alone(log: Path) -> None:
    log.write_text(TRACE)
    verdict = verdict_on(log, Failed(rank=0, error="UserError", message="Row 3 has no text.", fix="Mend it.", expected=True))
    assert verdict.error is not None
    assert (verdict.error["message"], "diagnosis" in verdict.error) == ("Row 3 has no text.", False)


def test_a_log_that_says_nothing_adds_nothing(log: Path) -> None:
    log.write_text("starting\n")
    assert "diagnosis" not in (verdict_on(log).error or {})


def test_a_run_that_did_not_fail_is_not_diagnosed(log: Path) -> None:
    log.write_text(TRACE)
    going_on = Verdict(Status.QUEUED, "GPU memory ran out.")
    assert explained(going_on, Seen(), {}, {}, log, 0) is going_on


def test_a_rank_that_the_log_does_not_name_is_the_first_that_reported(log: Path) -> None:
    log.write_text(TRACE)
    failure = Failed(rank=2, error="RuntimeError", message=ERROR, traceback=TRACE)
    assert diagnosis_of(verdict_on(log, failure))["first_failed_rank"] == 2
