"""The verdict on a run after each kind of end of its training process."""

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast.step_down import next_rung_after
from training.run_folder import checkpoints
from training.run_folder.events import Failed, Finished, OutOfMemory
from training.run_folder.full_disk import FullDisk
from training.run_folder.paths import checkpoints_dir
from worker.diagnosis.kills import Killed
from worker.store.tables import Request, Run, Status
from worker.supervision.outcome import Ending, judge
from worker.supervision.report_reader import AttemptProgress, Reports


def seen(*, step: int = 0, phases: tuple[str, ...] = ("starting",), log: str = "", **facts: object) -> AttemptProgress:
    created = AttemptProgress(step=step, phase=phases[-1], phases=set(phases), **facts)  # type: ignore[arg-type]
    created.log.append(log)
    return created


def failure(message: str, *, rank: int = 0, expected: bool = False) -> Failed:
    return Failed(rank=rank, error="Error", message=message, fix="Mend it." if expected else "", expected=expected)


KILLED = "Signal 9 (SIGKILL) received by PID 42"
SEGFAULT = "subprocess.CalledProcessError: Command '[...]' died with <Signals.SIGSEGV: 11>."
TRAINING = ("starting", "training")
WHY = "Rank 1 had ended in the phase training without a report, and the others did not exit within 15 s."
KILL = Killed(WHY, frozenset({42}))


def test_a_run_that_reported_its_end_is_finished_whatever_its_exit_code() -> None:
    progress = seen(step=5, finished=Finished(outcome="finished", step=5, summary={"steps": 5}))
    verdict = judge(progress, Ending(exit_code=-11, asked=Request.STOP))
    assert (verdict.status, verdict.summary) == (Status.FINISHED, {"steps": 5})


def test_a_diverged_run_has_a_status_of_its_own_and_its_best_checkpoint_as_result() -> None:
    progress = seen(step=9, finished=Finished(outcome="diverged", step=4, summary={"steps": 4, "diverged_at": 9}))
    verdict = judge(progress, Ending(exit_code=0))
    assert (verdict.status, verdict.summary) == (Status.DIVERGED, {"steps": 4, "diverged_at": 9})
    assert verdict.reason == "The loss or gradient was not finite at step 9. Its result is its checkpoint of step 4."
    assert verdict.status.ended and verdict.status.resumable
    without = seen(finished=Finished(outcome="diverged", step=0, summary={"diverged_at": 9}))
    verdict = judge(without, Ending(exit_code=0))
    assert verdict.reason.endswith("It had no checkpoint with finite weights.") and verdict.summary is None


def test_a_diverged_run_that_steps_back_is_queued_with_a_lower_learning_rate() -> None:
    changes = {"learning_rate": 1e-5, "on_divergence": "stop"}
    progress = seen(finished=Finished(outcome="diverged", step=4, summary={"diverged_at": 9, "changes": changes}))
    verdict = judge(progress, Ending(exit_code=0))
    assert (verdict.status, verdict.step_down) == (Status.QUEUED, changes)
    assert verdict.reason.endswith("It continues from step 4, with learning rate 1e-05.")


def test_a_user_error_takes_precedence_over_errors_of_other_ranks() -> None:
    failures = [failure("Connection closed by peer", rank=1), failure("Row 3 has no text.", expected=True)]
    verdict = judge(seen(step=9, failures=failures), Ending(exit_code=1))
    assert verdict.error is not None
    assert (verdict.status, verdict.retry, verdict.error["message"]) == (Status.FAILED, False, "Row 3 has no text.")


@pytest.mark.parametrize(
    ("log", "phases", "step", "retry"),
    [
        (KILLED, ("loading model",), 0, True),
        (KILLED, TRAINING, 3, True),
        ("srun: error: Unable to confirm allocation for job 7: Socket timed out", ("starting",), 0, True),
        (SEGFAULT, ("loading model",), 0, False),
        (SEGFAULT, TRAINING, 0, True),
        ("", ("loading model",), 0, False),
        ("", TRAINING, 3, True),
    ],
)
def test_a_crash_is_retried_if_that_can_help(log: str, phases: tuple[str, ...], step: int, retry: bool) -> None:
    verdict = judge(seen(log=log, phases=phases, step=step), Ending(exit_code=1))
    assert (verdict.status, verdict.retry) == (Status.FAILED, retry)


def test_ranks_that_slurm_did_not_start_are_named_before_the_status_of_srun() -> None:
    refused = "srun: error: Task launch for StepId=1.0 failed on node n2: Communication connection failure"
    verdict = judge(seen(log=refused, phases=("starting",)), Ending(exit_code=-105))
    assert "did not start the ranks: Task launch for StepId=1.0 failed on node n2" in verdict.reason and verdict.retry
    assert verdict.machine == "n2"


LOST_NODE = "srun: error: Node failure on n2\nsrun: Job step aborted: Waiting up to 22 seconds for job step to finish."


@pytest.mark.parametrize(("asked", "machine"), [(Request.REQUEUE, "n2"), (Request.STOP, "")])
def test_a_node_whose_failure_made_slurm_requeue_the_job_is_named(asked: Request, machine: str) -> None:
    verdict = judge(seen(log=LOST_NODE, step=3), Ending(exit_code=0, asked=asked, killed=KILL))
    assert verdict.machine == machine
    assert ("node n2 had failed" in verdict.reason) == bool(machine)


def test_an_attempt_that_ends_before_it_resumes_names_the_checkpoint_of_an_earlier_one(tmp_path: Path) -> None:
    checkpoint = checkpoints_dir(tmp_path) / "checkpoint-20"
    checkpoint.mkdir(parents=True)
    (checkpoint / "weights").write_text("1")
    checkpoints.seal(checkpoint)
    progress = Reports(Run(name="a", config={}, attempt=2, step=25), tmp_path).seen
    verdict = judge(progress, Ending(exit_code=1, killed=KILL))
    assert (verdict.retry, verdict.goes_on) == (True, "It continues from the checkpoint of step 20.")


@pytest.mark.parametrize("trained_before", [False, True])
def test_an_error_before_the_first_step_is_retried_if_an_earlier_attempt_trained(trained_before: bool) -> None:
    progress = seen(failures=[failure("Connection refused")], trained_before=trained_before)
    assert judge(progress, Ending(exit_code=1)).retry is trained_before


def test_a_killed_rank_is_the_cause_and_not_the_error_of_another_rank() -> None:
    failures = [failure("Connection closed by peer", rank=1)]
    verdict = judge(seen(failures=failures, log=KILLED, phases=("loading model",)), Ending(exit_code=1))
    assert "SIGKILL" in verdict.reason
    assert verdict.retry


TORCHRUN = """
[0]: exitcode : -15 (pid: 41) (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 41
Root Cause (first observed failure):
"""


def test_ranks_that_torchrun_ended_are_not_the_cause() -> None:
    failures = [failure("ValueError: no")]
    assert "SIGKILL" in judge(seen(log=TORCHRUN + KILLED, phases=TRAINING), Ending(exit_code=1)).reason
    assert judge(seen(log=TORCHRUN, failures=failures), Ending(exit_code=1)).reason == "ValueError: no"


def test_out_of_host_memory_is_named_and_not_retried() -> None:
    verdict = judge(seen(step=3, log=KILLED, phases=TRAINING), Ending(exit_code=1, out_of_memory=True))
    assert verdict.error is not None
    assert (verdict.status, verdict.retry) == (Status.FAILED, False)
    assert "out of memory (host RAM)" in verdict.error["message"]
    assert "micro batch" in verdict.error["fix"]


def test_an_out_of_memory_kill_of_another_process_is_not_the_cause() -> None:
    verdict = judge(seen(step=3, failures=[failure("ValueError: no")]), Ending(exit_code=1, out_of_memory=True))
    assert verdict.reason == "ValueError: no"


def test_a_full_disk_is_detected_if_the_trainer_could_not_report_it() -> None:
    verdict = judge(seen(step=3), Ending(exit_code=1, full_disk=FullDisk("The disk at / is full.", "Free some space.")))
    assert verdict.error is not None
    assert (verdict.error["message"], verdict.retry) == ("The disk at / is full.", False)


@pytest.mark.parametrize(("asked", "status"), [(Request.STOP, Status.STOPPED), (Request.REQUEUE, Status.QUEUED)])
def test_a_killed_process_still_counts_as_stopped_on_request(asked: Request, status: Status) -> None:
    verdict = judge(seen(step=7, saved_step=5), Ending(exit_code=-signal.SIGKILL, asked=asked, killed=KILL))
    assert verdict.status is status
    assert "the checkpoint of step 5 is kept" in verdict.reason


def test_a_trainer_that_somebody_else_ended_is_requeued() -> None:
    progress = seen(step=7, saved_step=7, finished=Finished(outcome="stopped", step=7, summary={}))
    verdict = judge(progress, Ending(exit_code=0))
    assert (verdict.retry, verdict.goes_on) == (True, "It continues from the checkpoint of step 7.")


def test_a_signal_counts_only_if_the_supervisor_did_not_send_it() -> None:
    assert "SIGKILL" in judge(seen(), Ending(exit_code=-9)).reason
    for log in ("", KILLED, "[...] died with <Signals.SIGKILL: 9>."):
        verdict = judge(seen(log=log), Ending(exit_code=-9, killed=KILL))
        assert (verdict.reason, verdict.retry) == (f"Lathe killed the training: {WHY}", True)
    assert (
        "SIGKILL in the phase"
        in judge(seen(log=KILLED), Ending(exit_code=1, killed=Killed(WHY, frozenset({41})))).reason
    )
    on_machines = judge(seen(log=KILLED), Ending(exit_code=1, killed=Killed(WHY)))
    assert on_machines.reason == f"Lathe killed the training: {WHY}"


def test_an_error_that_a_rank_reported_wins_over_the_kill_of_ranks_that_exit_slowly() -> None:
    progress = seen(log=KILLED, phases=("preparing",), failures=[failure("ValueError: no")])
    verdict = judge(progress, Ending(exit_code=1, killed=KILL))
    assert (verdict.reason, verdict.retry) == ("ValueError: no", False)


def test_an_unexplained_failure_has_the_end_of_the_log() -> None:
    verdict = judge(seen(log="ImportError: no module"), Ending(exit_code=3))
    assert verdict.error is not None
    assert "exit code 3" in verdict.error["message"]
    assert verdict.error["log_tail"] == "ImportError: no module"


def ran_out(policy: str, step_down: dict[str, object] | None) -> AttemptProgress:
    where = {"rank": 1, "device": "cuda", "phase": "training", "part": "forward", "step": 41, "micro_step": 2}
    report = OutOfMemory(**where, policy=policy, step_down=step_down, requested_bytes=2**31)  # type: ignore[arg-type]
    return seen(step=40, phases=TRAINING, saved_step=40, out_of_memory=report, failures=[failure("no room", rank=1)])


def test_the_supervisor_chooses_the_next_settings_from_the_out_of_memory_report() -> None:
    report = ran_out("step_down", None).out_of_memory
    config = RunConfig(model="m", data="d", micro_batch_size=4)
    assert report is not None
    less = next_rung_after(report, config, Machine(), has_checkpoint=True)
    assert less == {"micro_batch_size": 2, "gradient_accumulation_steps": 2}
    verdict = judge(ran_out("step_down", None), Ending(exit_code=1, step_down=less))
    assert (verdict.status, verdict.step_down) == (Status.QUEUED, less)


def test_fewer_rows_are_the_last_step_if_one_row_dominates_a_flat_batch() -> None:
    report = ran_out("step_down", None).out_of_memory
    assert report is not None
    tensors = [{"name": "input_ids", "shape": [1, 100], "dtype": "int64", "bytes": 800}]
    long_row = replace(report, tensors=tensors, batches=[{"rank": 1, "rows": [4, 7], "tokens": [90, 10]}])
    even_rows = replace(report, tensors=tensors, batches=[{"rank": 1, "rows": [4, 7, 9], "tokens": [40, 30, 30]}])
    config = RunConfig(model="m", data="d", micro_batch_size=4)
    rungs = [
        next_rung_after(out_of_memory, config, Machine(), has_checkpoint=True)
        for out_of_memory in (long_row, even_rows)
    ]
    assert ["micro_batch_size" in (rung or {}) for rung in rungs] == [False, True]


def test_a_run_that_is_out_of_memory_resumes_with_less_memory() -> None:
    verdict = judge(ran_out("step_down", {"micro_batch_size": 2}), Ending(exit_code=1))
    assert (verdict.status, verdict.retry, verdict.step_down) == (Status.QUEUED, False, {"micro_batch_size": 2})
    assert verdict.reason == (
        "Out of GPU memory on rank 1 in the forward pass of step 41, micro step 2. Tried to allocate 2.0 GiB. "
        "It continues from the checkpoint of step 40, with micro batch size 2."
    )


def test_with_ask_an_out_of_memory_run_fails_and_proposes_smaller_settings() -> None:
    verdict = judge(ran_out("ask", {"micro_batch_size": 2}), Ending(exit_code=1))
    assert (verdict.status, verdict.retry, verdict.step_down) == (Status.FAILED, False, {})
    assert verdict.error is not None
    assert verdict.error["step_down"] == {"micro_batch_size": 2}
    assert verdict.error["fix"] == "Resume with micro batch size 2; the global batch size stays the same."


def test_an_out_of_memory_run_without_smaller_settings_fails_with_advice() -> None:
    verdict = judge(ran_out("step_down", None), Ending(exit_code=1))
    assert (verdict.status, verdict.retry) == (Status.FAILED, False)
    assert verdict.error is not None and "max_length" in verdict.error["fix"]


def test_a_run_that_waits_for_its_review_is_stopped() -> None:
    verdict = judge(seen(finished=Finished(outcome="review", step=0, summary={})), Ending(exit_code=0))
    assert (verdict.status, verdict.reason) == (
        Status.STOPPED, "It has drawn samples of the untrained model. Resume trains.",
    )  # fmt: skip
