"""Decides how an attempt ended and what happens to its run. Pure."""

import re
import signal
import traceback
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from training.config.choices import OnOutOfMemory
from training.config.fields import in_words
from training.config.run_config import Changes
from training.errors import UserError
from training.run_folder.events import DIVERGED, FINISHED, PAUSED, REVIEW, Failed, Finished, OutOfMemory
from training.run_folder.full_disk import FullDisk
from training.run_folder.memory_words import summary
from training.run_folder.stages import MISSING, PACKING, UNDONE, Saved
from training.units import signal_name
from worker.diagnosis.kills import Killed
from worker.store.tables import Request, Status
from worker.supervision.report_reader import AttemptProgress

# Signals sent from outside: a new attempt may succeed. Other signals are crashes of the program.
_FROM_OUTSIDE = {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
_SIGNAL_IN_LOG = re.compile(
    r"Signal (?P<of_rank>\d+) \(SIG\w+\) received by PID (?P<pid>\d+)|died with <Signals\.SIG\w+: (?P<of_only_rank>\d+)>"
)
_NOT_LAUNCHED = re.compile(
    r"srun: error: ((?:Unable to (?:create step|confirm allocation)|Application launch failed|Task launch for ).*)"
)
"""Slurm did not start the ranks: its controller or a node did not answer."""
_KILLED = re.compile(r"Root Cause(?:(?!Root Cause).)*?host\s*:\s*(\S+)(?:(?!Root Cause).)*?exitcode\s*:\s*-9\b", re.S)
_NODE_FAILURE = re.compile(r"(?:[Nn]ode failure on|Task launch for \S+ failed on node) ([^\s:,]+)")
NOTHING_LEFT = (
    "No settings that need less memory are left with the same global batch size. Lower max_length, quantize the weights to 4 bits "
    "(method qlora), choose an optimizer with a smaller state such as adamw_8bit, use more processes with zero3, "
    "or use a GPU with more memory."
)


@dataclass(frozen=True)
class Ending:
    """The end of a training process, as its supervisor knows it.

    `asked`: the request to stop or requeue the run. `killed`: what the supervisor killed. `out_of_memory`: the kernel killed
    processes because host memory was full. `full_disk`: the disk that is full. `read_only`: the disk that was read-only when
    they ended. `step_down`: the settings of
    `next_rung_after` (training/forecast/step_down.py), if a rank was out of memory.
    """

    exit_code: int
    asked: Request | None = None
    killed: Killed | None = None
    out_of_memory: bool = False
    full_disk: FullDisk | None = None
    read_only: FullDisk | None = None
    step_down: Changes | None = None


@dataclass(frozen=True)
class Verdict:
    """What happens to the run; with `status` queued it continues later.

    `summary`: that of its result, if it has one. `retry`: it is requeued while attempts are left, and `goes_on` says from where.
    `paused`: it waits for the decision of its sweep. `step_down`: the settings that change. `machine`: the name of the machine
    whose fault ended the attempt, or empty.
    """

    status: Status
    reason: str = ""
    error: dict[str, Any] | None = None
    summary: dict[str, Any] | None = None
    exit_code: int | None = None
    retry: bool = False
    goes_on: str = ""
    paused: bool = False
    step_down: dict[str, Any] = field(default_factory=dict)
    machine: str = ""


def with_result(verdict: Verdict, saved: Saved, undone: dict[str, str]) -> Verdict:
    """The verdict on an attempt that ended after its result was saved whole: whatever happened then, the run has this result.

    `undone` are the phases that are left, with the reasons. A run that is tried again continues with them.
    """
    if verdict.summary is not None:
        return verdict
    summary = saved.summary | ({UNDONE: undone} if undone else {})
    left = f"{'; '.join(['Its result is saved', *map(MISSING.__getitem__, undone)])}."
    continues = f"It continues in the phase {next(iter(undone), PACKING.phase)}."
    if verdict.retry:
        return replace(verdict, summary=summary, goes_on=f"Its result is saved. {continues}")
    if verdict.status is Status.QUEUED:
        return Verdict(Status.QUEUED, f"{left} {continues}", summary=summary, machine=verdict.machine)
    status = Status.DIVERGED if saved.outcome == DIVERGED else Status.FINISHED
    reason = left if verdict.status is Status.STOPPED else f"{verdict.reason} {left}"
    return Verdict(status, reason, summary=summary, exit_code=verdict.exit_code, machine=verdict.machine)


def judge(seen: AttemptProgress, ending: Ending) -> Verdict:
    """The verdict on an attempt: from the program's own report first, then the request, then the way it ended."""
    if seen.finished and (verdict := _reported(seen.finished, ending)):
        return verdict
    expected = next((failure for failure in seen.failures if failure.expected), None)
    if expected:
        return _expected(seen, expected)
    if ending.asked:
        return _as_asked(seen, ending)
    if disk := ending.full_disk or ending.read_only:
        return _crash(seen, *disk, retry=disk is ending.read_only)
    if seen.finished:
        return _crash(seen, "The training process was stopped by a SIGTERM that Lathe did not send.", retry=True)
    verdict = _crashed(seen, ending)
    return replace(verdict, machine=killed_on(seen.log)) if verdict.retry and not ending.killed else verdict


def _reported(done: Finished, ending: Ending) -> Verdict | None:
    """The verdict that the program reported itself: finished, or paused without a request."""
    if done.outcome == FINISHED:
        return Verdict(Status.FINISHED, summary=done.summary)
    if done.outcome == DIVERGED:
        return _diverged(done)
    if done.outcome == REVIEW and not ending.asked:
        return Verdict(Status.STOPPED, "It has drawn samples of the untrained model. Resume trains.")
    return at_rung(done) if done.outcome == PAUSED and not ending.asked else None


def _diverged(done: Finished) -> Verdict:
    """The verdict on an attempt whose loss or gradient was no longer finite: the run ends, or steps back to its last checkpoint."""
    reason = f"The loss or gradient was not finite at step {done.summary['diverged_at']:,}."
    if changes := done.summary.get("changes"):
        whence = f"from step {done.step:,}" if done.step else "from the beginning"
        lower = in_words({"learning_rate": changes["learning_rate"]})
        return Verdict(Status.QUEUED, f"{reason} It continues {whence}, with {lower}.", step_down=changes)
    if not done.step:
        return Verdict(Status.DIVERGED, f"{reason} It had no checkpoint with finite weights.")
    return Verdict(
        Status.DIVERGED, f"{reason} Its result is its checkpoint of step {done.step:,}.", summary=done.summary
    )


def at_rung(done: Finished) -> Verdict:
    """The verdict on an attempt that has reached the step at which its sweep decides."""
    reason = f"Saved at step {done.step:,}. Its sweep decides whether it continues."
    return Verdict(Status.QUEUED, reason, paused=True)


def _expected(seen: AttemptProgress, failure: Failed) -> Verdict:
    """An error that the user can fix. One of a machine is tried again: the next attempt may have another."""
    if seen.node_fault is None:
        return _failed(seen, failure.message, failure.fix, failure)
    verdict = _crash(seen, failure.message, failure.fix, retry=True, failure=failure)
    return replace(verdict, machine=seen.node_fault.node)


def _as_asked(seen: AttemptProgress, ending: Ending) -> Verdict:
    stopped = ending.asked is Request.STOP
    if not seen.trained:
        how = "No step was trained."
    elif seen.finished and seen.finished.step:
        how = f"Saved at step {seen.finished.step}."
    elif seen.finished:
        how = f"Training had finished, but not the work after it; {kept(seen)}."
    else:
        how = f"It {'did not stop in time and was killed' if ending.killed else 'did not save'}; {kept(seen)}."
    if stopped:
        return Verdict(Status.STOPPED, how)
    node = node_failure(seen.log)  # Slurm requeues the jobs of a node that fails
    reason = f"Slurm found that node {node} had failed. " if node else ""
    return Verdict(Status.QUEUED, f"{reason}{how} It will continue automatically.", machine=node)


def _crashed(seen: AttemptProgress, ending: Ending) -> Verdict:
    if seen.out_of_memory:
        return _out_of_memory(seen, seen.out_of_memory, ending.step_down)
    refused = next(filter(None, map(_NOT_LAUNCHED.search, seen.log)), None)
    number = None if refused else _signal(seen, ending)
    if ending.out_of_memory and number == signal.SIGKILL:
        fix = (
            "Use less host memory (fewer processes, no CPU offload, a smaller micro batch or max_length), "
            "or end other programs. Then resume the run."
        )
        return _failed(
            seen, "The machine is out of memory (host RAM), and the system killed the training process.", fix
        )
    failure = next(iter(seen.failures), None)
    if number is not None and (failure is None or number in _FROM_OUTSIDE):
        return _signalled(seen, number)
    if failure:
        return _crash(seen, failure.message, failure.fix, retry=seen.can_train, failure=failure)
    if refused or ending.killed:
        killed = f"Lathe killed the training: {ending.killed.why}" if ending.killed else ""
        message = f"Slurm did not start the ranks: {refused[1].rstrip('.')}." if refused else killed
        return _crash(seen, message, retry=True)
    message = f"The training process ended with exit code {ending.exit_code} without an error message."
    return _crash(seen, message, "Check the end of its log below.", retry=seen.can_train)


def _out_of_memory(seen: AttemptProgress, report: OutOfMemory, step_down: Changes | None) -> Verdict:
    """Requeues the run with settings that need less memory, or fails it: the same settings would fail again."""
    rung = report.step_down or step_down
    if rung and report.policy == OnOutOfMemory.STEP_DOWN:
        reason = f"{summary(report)} {goes_on(seen)[:-1]}, with {in_words(rung)}."
        return Verdict(Status.QUEUED, reason, step_down=rung)
    fix = f"Resume with {in_words(rung)}; the global batch size stays the same." if rung else NOTHING_LEFT
    failure = next((failure for failure in seen.failures if failure.rank == report.rank), None)
    verdict = _failed(seen, summary(report), fix, failure)
    return replace(verdict, error={**(verdict.error or {}), "step_down": rung})


def _signalled(seen: AttemptProgress, number: int) -> Verdict:
    message = f"A training process was killed by {signal_name(number)} in the phase {seen.phase}."
    fix = "If nobody killed it by hand, the machine may be out of memory." if number == signal.SIGKILL else ""
    return _crash(seen, message, fix, retry=number in _FROM_OUTSIDE or "training" in seen.phases)


def _signal(seen: AttemptProgress, ending: Ending) -> int | None:
    """The signal from outside of Lathe that killed a rank (from the launcher's log) or the launcher itself."""
    # torchrun lists the ranks that it killed itself before the one that it names as the root cause.
    found = _SIGNAL_IN_LOG.search("\n".join(seen.log).rpartition("Root Cause")[2])
    if found is None:
        return -ending.exit_code if ending.exit_code < 0 and not ending.killed else None
    number, pid = int(found["of_rank"] or found["of_only_rank"]), int(found["pid"]) if found["pid"] else None
    ours = number == signal.SIGKILL and ending.killed is not None and ending.killed.includes(pid)
    return None if ours else number


def unsupervised(error: Exception, seen: AttemptProgress, full: FullDisk | None, read_only: FullDisk | None) -> Verdict:
    """The verdict on a run after an error of the supervisor itself. `full`: the disk that is full; `read_only`: one that cannot be
    written to, which may change until the next attempt."""
    if isinstance(error, UserError):
        return _failed(seen, str(error), "")
    if full:
        return _failed(seen, f"{full.message} {getattr(error, 'strerror', None) or error}.", full.fix)
    if read_only:
        return _crash(seen, *read_only, retry=True)
    message = f"The run could not be supervised: {type(error).__name__}: {error}"
    verdict = _failed(seen, message, "")
    trace = "".join(traceback.format_exception(error))
    return replace(verdict, error={**(verdict.error or {}), "traceback": trace})


def node_failure(log: Iterable[str]) -> str:
    """The machine that Slurm found to have failed, or on which it could not launch the ranks; empty if none."""
    found = _NODE_FAILURE.search("\n".join(log))
    return found[1].rstrip(".") if found else ""


def killed_on(log: Iterable[str]) -> str:
    """The machine on which a rank was killed (torchrun's report), else that of `node_failure`; empty if none."""
    lines = list(log)
    found = _KILLED.search("\n".join(lines))
    return node_failure(lines) or (found[1].rstrip(".,") if found else "")


def kept(seen: AttemptProgress) -> str:
    """The saved checkpoint, as a clause."""
    return (
        "no checkpoint was saved yet"
        if seen.saved_step is None
        else f"the checkpoint of step {seen.saved_step} is kept"
    )


def goes_on(seen: AttemptProgress) -> str:
    """Where the next attempt starts, as a sentence."""
    saved = seen.saved_step
    return "It starts from the beginning." if saved is None else f"It continues from the checkpoint of step {saved}."


def error_of(seen: AttemptProgress, message: str, fix: str = "", failure: Failed | None = None) -> dict[str, Any]:
    """The error stored with the run: message, fix, the error's class, phase, rank, traceback and the end of the log."""
    return {
        "message": message,
        "fix": fix,
        "error": failure.error if failure else "",
        "phase": failure.phase if failure else seen.phase,
        "rank": failure.rank if failure else None,
        "traceback": failure.traceback if failure else "",
        "log_tail": "\n".join(seen.log),
    }


def _failed(seen: AttemptProgress, message: str, fix: str, failure: Failed | None = None) -> Verdict:
    return Verdict(Status.FAILED, message, error_of(seen, message, fix, failure))


def _crash(
    seen: AttemptProgress, message: str, fix: str = "", *, retry: bool, failure: Failed | None = None
) -> Verdict:
    return Verdict(Status.FAILED, message, error_of(seen, message, fix, failure), retry=retry, goes_on=goes_on(seen))
