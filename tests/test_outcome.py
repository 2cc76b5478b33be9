"""What becomes of a run whose training process has ended: a verdict for each way to end."""

import signal

import pytest

from training.disk import FullDisk
from training.events import Failed, Finished, OutOfMemory
from worker.models import Request, Status
from worker.outcome import Ending, judge
from worker.reports import Seen


def seen(*, step: int = 0, phases: tuple[str, ...] = ("starting",), log: str = "", **facts: object) -> Seen:
    made = Seen(step=step, phase=phases[-1], phases=set(phases), **facts)  # type: ignore[arg-type]
    made.log.append(log)
    return made


def failure(message: str, *, rank: int = 0, expected: bool = False) -> Failed:
    return Failed(rank=rank, error="Error", message=message, fix="Mend it." if expected else "", expected=expected)


KILLED = "Signal 9 (SIGKILL) received by PID 42"
SEGFAULT = "subprocess.CalledProcessError: Command '[...]' died with <Signals.SIGSEGV: 11>."
TRAINING = ("starting", "training")


def test_a_run_that_said_it_finished_is_finished_however_its_process_ended() -> None:
    said = seen(step=5, finished=Finished(outcome="finished", step=5, summary={"steps": 5}))
    verdict = judge(said, Ending(exit_code=-11, asked=Request.STOP))
    assert (verdict.status, verdict.summary) == (Status.FINISHED, {"steps": 5})


def test_a_mistake_of_a_person_counts_before_what_it_led_to_on_other_ranks() -> None:
    failures = [failure("Connection closed by peer", rank=1), failure("Row 3 has no text.", expected=True)]
    verdict = judge(seen(step=9, failures=failures), Ending(exit_code=1))
    assert verdict.error is not None
    assert (verdict.status, verdict.retry, verdict.error["message"]) == (Status.FAILED, False, "Row 3 has no text.")


@pytest.mark.parametrize(
    ("log", "phases", "step", "retry"),
    [
        (KILLED, ("loading model",), 0, True),
        (KILLED, TRAINING, 3, True),
        (SEGFAULT, ("loading model",), 0, False),
        (SEGFAULT, TRAINING, 0, True),
        ("", ("loading model",), 0, False),
        ("", TRAINING, 3, True),
    ],
)
def test_a_crash_is_tried_again_where_that_may_help(log: str, phases: tuple[str, ...], step: int, retry: bool) -> None:
    verdict = judge(seen(log=log, phases=phases, step=step), Ending(exit_code=1))
    assert (verdict.status, verdict.retry) == (Status.FAILED, retry)


def test_a_rank_that_was_killed_is_the_cause_and_not_the_error_of_the_rank_that_missed_it() -> None:
    failures = [failure("Connection closed by peer", rank=1)]
    verdict = judge(seen(failures=failures, log=KILLED, phases=("loading model",)), Ending(exit_code=1))
    assert "SIGKILL" in verdict.reason
    assert verdict.retry


TORCHRUN = """
[0]: exitcode : -15 (pid: 41) (SIGTERM)
  traceback : Signal 15 (SIGTERM) received by PID 41
Root Cause (first observed failure):
"""


def test_ranks_that_torchrun_ended_itself_are_not_the_cause() -> None:
    failures = [failure("ValueError: no")]
    assert "SIGKILL" in judge(seen(log=TORCHRUN + KILLED, phases=TRAINING), Ending(exit_code=1)).reason
    assert judge(seen(log=TORCHRUN, failures=failures), Ending(exit_code=1)).reason == "ValueError: no"


def test_host_memory_that_ran_out_is_named_and_not_tried_again() -> None:
    verdict = judge(seen(step=3, log=KILLED, phases=TRAINING), Ending(exit_code=1, out_of_memory=True))
    assert verdict.error is not None
    assert (verdict.status, verdict.retry) == (Status.FAILED, False)
    assert "out of memory (host RAM)" in verdict.error["message"]
    assert "micro batch" in verdict.error["fix"]


def test_memory_that_ran_out_elsewhere_is_not_blamed_for_an_error_of_the_program() -> None:
    verdict = judge(seen(step=3, failures=[failure("ValueError: no")]), Ending(exit_code=1, out_of_memory=True))
    assert verdict.reason == "ValueError: no"


def test_a_full_disk_is_named_where_the_trainer_could_not_say_so() -> None:
    verdict = judge(seen(step=3), Ending(exit_code=1, full_disk=FullDisk("The disk at / is full.", "Free some space.")))
    assert verdict.error is not None
    assert (verdict.error["message"], verdict.retry) == ("The disk at / is full.", False)


@pytest.mark.parametrize(("asked", "status"), [(Request.STOP, Status.STOPPED), (Request.REQUEUE, Status.QUEUED)])
def test_a_process_that_had_to_be_ended_has_still_done_as_asked(asked: Request, status: Status) -> None:
    verdict = judge(seen(step=7, saved_step=5), Ending(exit_code=-signal.SIGKILL, asked=asked, forced=True))
    assert verdict.status is status
    assert "the checkpoint of step 5 is kept" in verdict.reason


def test_a_trainer_told_to_leave_by_somebody_else_goes_on() -> None:
    said = seen(step=7, saved_step=7, finished=Finished(outcome="stopped", step=7, summary={}))
    verdict = judge(said, Ending(exit_code=0))
    assert (verdict.retry, verdict.goes_on) == (True, "It goes on from the checkpoint of step 7.")


def test_the_launchers_own_signal_counts_only_where_the_supervisor_did_not_send_it() -> None:
    assert "SIGKILL" in judge(seen(), Ending(exit_code=-9)).reason
    assert "the others waited" in judge(seen(), Ending(exit_code=-9, forced=True)).reason


def test_an_unexplained_end_keeps_the_end_of_the_log() -> None:
    verdict = judge(seen(log="ImportError: no module"), Ending(exit_code=3))
    assert verdict.error is not None
    assert "exit code 3" in verdict.error["message"]
    assert verdict.error["log_tail"] == "ImportError: no module"


def ran_out(policy: str, step_down: dict[str, object] | None) -> Seen:
    where = {"rank": 1, "device": "cuda", "phase": "training", "part": "forward", "step": 41, "micro_step": 2}
    told = OutOfMemory(**where, policy=policy, step_down=step_down, requested_bytes=2**31)  # type: ignore[arg-type]
    return seen(step=40, phases=TRAINING, saved_step=40, out_of_memory=told, failures=[failure("no room", rank=1)])


def test_a_run_whose_memory_ran_out_goes_on_by_itself_with_less() -> None:
    verdict = judge(ran_out("step_down", {"micro_batch_size": 2}), Ending(exit_code=1))
    assert (verdict.status, verdict.retry, verdict.step_down) == (Status.QUEUED, False, {"micro_batch_size": 2})
    assert verdict.reason == (
        "GPU memory ran out on rank 1 in the forward pass of step 41, micro step 2: 2.0 GiB were asked for. "
        "It goes on from the checkpoint of step 40, with micro batch size 2."
    )


def test_or_fails_and_proposes_to_go_on_with_less() -> None:
    verdict = judge(ran_out("ask", {"micro_batch_size": 2}), Ending(exit_code=1))
    assert (verdict.status, verdict.retry, verdict.step_down) == (Status.FAILED, False, {})
    assert verdict.error is not None
    assert verdict.error["step_down"] == {"micro_batch_size": 2}
    assert verdict.error["fix"] == "Resume it with micro batch size 2: the global batch stays."


def test_where_nothing_takes_less_it_fails_with_what_would_and_is_not_tried_again() -> None:
    verdict = judge(ran_out("step_down", None), Ending(exit_code=1))
    assert (verdict.status, verdict.retry) == (Status.FAILED, False)
    assert verdict.error is not None and "max_length" in verdict.error["fix"]
