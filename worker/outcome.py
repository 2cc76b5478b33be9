"""How an attempt ended and what becomes of its run: decided from what was seen, nothing done here."""

import re
import signal
import traceback
from dataclasses import dataclass, field, replace
from typing import Any

from training.config import OnOutOfMemory
from training.disk import FullDisk
from training.events import Failed, OutOfMemory
from training.fields import ConfigError
from training.step_down import in_words
from worker.memory_words import summary
from worker.models import Request, Status
from worker.reports import Seen

# Ended so from outside: the same start may well succeed. The others are a program's own crash.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_SIGNAL_IN_LOG = re.compile(r"Signal (\d+) \(SIG\w+\) received by PID|died with <Signals\.SIG\w+: (\d+)>")
NOTHING_LEFT = (
    "No step down is left that keeps the global batch and goes on from here. A shorter max_length, weights held in 4 bits "
    "(method qlora), an optimizer with a smaller state such as adamw_8bit, more processes that share under zero3, "
    "or a GPU with more memory take less."
)


@dataclass(frozen=True)
class Ending:
    """The end of a training process, as its supervisor knows it.

    `asked`: what was asked of the run. `forced`: the supervisor ended it. `out_of_memory`: the kernel ended processes for
    want of host memory meanwhile. `full_disk`: a disk was found to be full.
    """

    exit_code: int
    asked: Request | None = None
    forced: bool = False
    out_of_memory: bool = False
    full_disk: FullDisk | None = None


@dataclass(frozen=True)
class Verdict:
    """What becomes of the run. `status` queued: it goes on later.

    `retry`: it is queued again as long as attempts are left, and `goes_on` says from where. `step_down`: the settings that
    it goes on with.
    """

    status: Status
    reason: str = ""
    error: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None
    exit_code: int | None = None
    retry: bool = False
    goes_on: str = ""
    step_down: dict[str, Any] = field(default_factory=dict)


def judge(seen: Seen, ending: Ending) -> Verdict:
    """The verdict on an attempt: what the trainer said comes first, then what was asked of it, then why it may have died."""
    if seen.finished and seen.finished.outcome == "finished":
        return Verdict(Status.FINISHED, summary=seen.finished.summary)
    expected = next((failure for failure in seen.failures if failure.expected), None)
    if expected:
        return _failed(seen, expected.message, expected.fix, expected)
    if ending.asked:
        return _as_asked(seen, ending)
    if ending.full_disk:
        return _failed(seen, ending.full_disk.message, ending.full_disk.fix)
    if seen.finished:
        return _crash(seen, "The training process was told to leave (SIGTERM), though not by Lathe.", retry=True)
    return _crashed(seen, ending)


def _as_asked(seen: Seen, ending: Ending) -> Verdict:
    stopped = ending.asked is Request.STOP
    if not seen.trained:
        how = "It had not made a step."
    elif seen.finished and seen.finished.step:
        how = f"Saved at step {seen.finished.step}."
    elif seen.finished:
        how = f"It had trained to its end and was not done with what follows; {kept(seen)}."
    else:
        how = f"It did not {'leave in time and was ended' if ending.forced else 'save'}; {kept(seen)}."
    return Verdict(Status.STOPPED if stopped else Status.QUEUED, how if stopped else f"{how} It goes on by itself.")


def _crashed(seen: Seen, ending: Ending) -> Verdict:
    if seen.out_of_memory:
        return _ran_out(seen, seen.out_of_memory)
    number = _signal(seen, ending)
    if ending.out_of_memory and number == signal.SIGKILL:
        fix = (
            "Use less host memory: fewer processes, no offload to the CPU, a smaller micro batch or max length; "
            "or end other programs. Then resume the run."
        )
        return _failed(
            seen, "The machine ran out of memory (host RAM), and the system ended the training process.", fix
        )
    failure = next(iter(seen.failures), None)
    if number is not None and (failure is None or number in _FROM_OUTSIDE):
        return _signalled(seen, number)
    if failure:
        return _crash(seen, failure.message, failure.fix, retry=seen.trained, failure=failure)
    if ending.forced:
        return _crash(seen, "A training process ended, and the others waited for it.", retry=True)
    message = f"The training process ended with exit code {ending.exit_code} and did not say why."
    return _crash(seen, message, "The end of its log, below, may tell.", retry=seen.trained)


def _ran_out(seen: Seen, told: OutOfMemory) -> Verdict:
    """Memory that ran out runs out again at the same rows: the run goes on with less, or not at all."""
    rung = told.step_down
    if rung and told.policy == OnOutOfMemory.STEP_DOWN:
        reason = f"{summary(told)} {goes_on(seen)[:-1]}, with {in_words(rung)}."
        return Verdict(Status.QUEUED, reason, step_down=rung)
    fix = f"Resume it with {in_words(rung)}: the global batch stays." if rung else NOTHING_LEFT
    failure = next((failure for failure in seen.failures if failure.rank == told.rank), None)
    verdict = _failed(seen, summary(told), fix, failure)
    return replace(verdict, error={**(verdict.error or {}), "step_down": rung})


def _signalled(seen: Seen, number: int) -> Verdict:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    message = f"A training process was ended by {name} in the phase {seen.phase}."
    fix = "If nobody ended it by hand, the machine may have run out of memory." if number == signal.SIGKILL else ""
    return _crash(seen, message, fix, retry=number in _FROM_OUTSIDE or "training" in seen.phases)


def _signal(seen: Seen, ending: Ending) -> int | None:
    """The signal that ended a rank (the launcher tells it in the log) or the launcher itself."""
    # torchrun also lists the ranks that it ended itself, before the one that it names as the root cause.
    found = _SIGNAL_IN_LOG.search("\n".join(seen.log).rpartition("Root Cause")[2])
    if found:
        return int(found[1] or found[2])
    if ending.exit_code < 0 and not ending.forced:
        return -ending.exit_code
    return None


def unsupervised(error: Exception, seen: Seen, full: FullDisk | None) -> Verdict:
    """The verdict on a run that its supervisor could not see through. `full`: since that disk is full."""
    if isinstance(error, ConfigError):
        return _failed(seen, str(error), "")
    if full:
        return _failed(seen, f"{full.message} {getattr(error, 'strerror', None) or error}.", full.fix)
    message = f"The run could not be supervised: {type(error).__name__}: {error}"
    verdict = _failed(seen, message, "")
    trace = "".join(traceback.format_exception(error))
    return replace(verdict, error={**(verdict.error or {}), "traceback": trace})


def kept(seen: Seen) -> str:
    """What is kept of the training, in words."""
    return (
        "no checkpoint was written yet"
        if seen.saved_step is None
        else f"the checkpoint of step {seen.saved_step} is kept"
    )


def goes_on(seen: Seen) -> str:
    """Where the next attempt begins, in words."""
    saved = seen.saved_step
    return "It begins again." if saved is None else f"It goes on from the checkpoint of step {saved}."


def error_of(seen: Seen, message: str, fix: str = "", failure: Failed | None = None) -> dict[str, Any]:
    """The error that a run keeps: message, fix, phase, rank, traceback and the end of the log."""
    return {
        "message": message,
        "fix": fix,
        "phase": failure.phase if failure else seen.phase,
        "rank": failure.rank if failure else None,
        "traceback": failure.traceback if failure else "",
        "log_tail": "\n".join(seen.log),
    }


def _failed(seen: Seen, message: str, fix: str, failure: Failed | None = None) -> Verdict:
    return Verdict(Status.FAILED, message, error_of(seen, message, fix, failure))


def _crash(seen: Seen, message: str, fix: str = "", *, retry: bool, failure: Failed | None = None) -> Verdict:
    return Verdict(Status.FAILED, message, error_of(seen, message, fix, failure), retry=retry, goes_on=goes_on(seen))
