"""The diagnosis in the verdict on a failed attempt."""

from pathlib import Path

import pytest

from training.run_folder.events import Failed
from worker.store.tables import Status
from worker.supervision.outcome import Ending, Verdict, judge
from worker.supervision.report_reader import AttemptProgress
from worker.supervision.run_diagnosis import explained, failure_cause

ERROR = "RuntimeError: CUDA out of memory. Tried to allocate 8.00 GiB."
TRACE = (
    f'Traceback (most recent call last):\n  File "model.py", line 7, in forward\n    scores = softmax(scores)\n{ERROR}'
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "output.log"


def verdict_on(
    log: Path,
    *failures: Failed,
    begin: int = 0,
    code: int = 1,
    stepped: dict[str, object] | None = None,
    **config: object,
) -> Verdict:
    seen = AttemptProgress(failures=list(failures))
    return explained(judge(seen, Ending(exit_code=code)), seen, dict(config), stepped or {}, log, begin)


def diagnosis_of(verdict: Verdict) -> dict[str, object]:
    assert verdict.error is not None
    result: dict[str, object] = verdict.error["diagnosis"]
    return result


def test_a_failed_attempt_stores_the_diagnosis_of_its_log(log: Path) -> None:
    log.write_text(TRACE)
    diagnosis = diagnosis_of(verdict_on(log, micro_batch_size=8, gradient_accumulation_steps=2))
    assert (diagnosis["cause"], diagnosis["evidence"]) == ("cuda_out_of_memory", [ERROR])
    assert diagnosis["changes"] == {"micro_batch_size": 4, "gradient_accumulation_steps": 4}


def test_settings_that_were_already_stepped_down_are_kept_and_not_advised_again(log: Path) -> None:
    log.write_text(TRACE)
    least: dict[str, object] = {
        "micro_batch_size": 1,
        "gradient_accumulation_steps": 16,
        "gradient_checkpointing": "full",
    }
    alone = diagnosis_of(verdict_on(log, stepped=dict(least), micro_batch_size=8, gradient_accumulation_steps=2))
    assert alone["changes"] == least | {"gradient_checkpointing": "offloaded"}  # the ladder's next step
    assert not any("micro_batch_size" in fix for fix in alone["fix"])  # type: ignore[attr-defined]
    least |= {"gradient_checkpointing": "offloaded", "offload_activations": True}
    shared = diagnosis_of(verdict_on(log, stepped=dict(least), micro_batch_size=8, num_processes=2))
    assert shared["changes"] == least | {"strategy": "zero2"}


def test_output_of_an_earlier_attempt_is_not_diagnosed(log: Path) -> None:
    log.write_text(f"{TRACE}\n")
    begin = log.stat().st_size
    with log.open("a") as stream:
        stream.write("PermissionError: [Errno 13] Permission denied: '/scratch'\n")
    assert diagnosis_of(verdict_on(log, begin=begin))["cause"] == "permission_denied"


@pytest.mark.parametrize("printed", ["starting\n", None])
def test_a_reported_traceback_counts_with_its_rank(log: Path, printed: str | None) -> None:
    if printed is not None:
        log.write_text(printed)
    diagnosis = diagnosis_of(verdict_on(log, Failed(rank=3, error="RuntimeError", message=ERROR, traceback=TRACE)))
    assert (diagnosis["cause"], diagnosis["first_failed_rank"]) == ("cuda_out_of_memory", 3)


def test_a_user_error_of_the_trainer_gets_no_diagnosis(log: Path) -> None:
    log.write_text(TRACE)
    verdict = verdict_on(
        log, Failed(rank=0, error="UserError", message="Row 3 has no text.", fix="Mend it.", expected=True)
    )
    assert verdict.error is not None
    assert (verdict.error["message"], "diagnosis" in verdict.error) == ("Row 3 has no text.", False)


def test_a_run_without_anything_to_learn_says_so_in_its_title(log: Path) -> None:
    log.write_text(TRACE)
    failed = Failed(rank=0, error="NothingToLearn", message="All samples get 0.", fix="Mend it.", expected=True)
    error = verdict_on(log, failed).error
    assert error is not None
    cause = failure_cause(error, None)
    assert (cause.title, cause.message, cause.fix) == ("Nothing to learn", "All samples get 0.", "Mend it.")


def test_a_log_without_a_cause_adds_no_diagnosis(log: Path) -> None:
    log.write_text("starting\n")
    assert "diagnosis" not in (verdict_on(log).error or {})


def test_a_run_that_did_not_fail_is_not_diagnosed(log: Path) -> None:
    log.write_text(TRACE)
    going_on = Verdict(Status.QUEUED, "GPU memory ran out.")
    assert explained(going_on, AttemptProgress(), {}, {}, log, 0) is going_on


def test_without_a_rank_in_the_log_the_first_reporting_rank_counts(log: Path) -> None:
    log.write_text(TRACE)
    failure = Failed(rank=2, error="RuntimeError", message=ERROR, traceback=TRACE)
    assert diagnosis_of(verdict_on(log, failure))["first_failed_rank"] == 2
