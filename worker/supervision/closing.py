"""Stores an attempt's outcome: the run ends, or returns to the queue while attempts are left.

Faults of a machine are counted: one that has failed twice is cordoned, and so is a GPU that has failed.
"""

from dataclasses import replace
from typing import Any, Literal

from sqlmodel import Session

from training.config import slurm_options
from worker.machine.devices import JOB
from worker.settings import get_settings
from worker.store import claims, history, machines
from worker.store.tables import Run, Status
from worker.supervision.outcome import Verdict

_UNUSABLE = ("down", "drain", "fail", "boot", "unk", "no_")  # states of Slurm's nodes
_OF_GPU, _OF_DRIVER = "gpu_hardware", ("gpu_not_found", "driver_mismatch", "driver_too_old")  # causes in diagnoses


def close(
    *, session: Session, run: Run, verdict: Verdict, max_attempts: int, counted_as: Literal["failed", "lost"] = "failed"
) -> bool:
    """Ends the run's current attempt and frees its devices. False if the attempt is no longer the current one."""
    if cordon_gpus(session=session, run=run, error=verdict.error, reason=verdict.reason):
        verdict = replace(verdict, retry=True)
    if verdict.machine:
        count_fault(session=session, run=run, name=verdict.machine, reason=verdict.reason)
    if verdict.retry:
        number = claims.failed_attempts(session=session, run=run) + 1
        if number < max_attempts:
            reason = f"Attempt {number} of {max_attempts} ended: {verdict.reason} {verdict.goes_on}".strip()
            return claims.requeue(
                session=session,
                run_id=run.id,
                attempt=run.attempt,
                reason=reason,
                outcome=counted_as,
                summary=verdict.summary,
            )
        verdict = _given_up(verdict, number)
    if verdict.step_down:
        run.stepped_down = run.stepped_down | verdict.step_down
        session.add(run)
    if verdict.status is Status.QUEUED:
        outcome = "paused" if verdict.paused else "requeued"
        return claims.requeue(
            session=session,
            run_id=run.id,
            attempt=run.attempt,
            reason=verdict.reason,
            outcome=outcome,
            summary=verdict.summary,
        )
    return claims.finish(
        session=session,
        run_id=run.id,
        attempt=run.attempt,
        status=verdict.status,
        reason=verdict.reason,
        exit_code=verdict.exit_code,
        error=verdict.error,
        summary=verdict.summary,
    )


def _given_up(verdict: Verdict, number: int) -> Verdict:
    if verdict.summary is not None:  # it has its result
        return Verdict(Status.FINISHED, verdict.reason, summary=verdict.summary, exit_code=verdict.exit_code)
    if number == 1:
        return verdict
    attempts = f"All {number} attempts failed."
    error = verdict.error and verdict.error | {"message": f"{verdict.error['message']} {attempts}"}
    return replace(verdict, reason=f"{verdict.reason} {attempts}", error=error)


def count_fault(*, session: Session, run: Run, name: str, reason: str) -> None:
    """Counts a failure of a machine of the run's attempt, by its name; after the second one puts it aside, or says why not.

    Does nothing if the run has one machine, or no machine of this name.
    """
    settings, hosts = get_settings(), _hosts(run)
    host = next((host for host in hosts if _short(host) == _short(name)), None)
    hours = settings.put_aside_hours
    if host is None or run.num_machines < 2 or not hours:
        return
    number = machines.add_failure(
        session=session, host=host, run_id=run.id, attempt=run.attempt, reason=reason, within_seconds=hours * 3600
    )
    if number < machines.FAILURES or host in machines.cordoned(session=session):
        return
    failed = f"Machine {host} ended {number} attempts within {hours:g} h, the latest: {reason}"
    others, needed = _others(session, run, host), int(run.config.get("min_machines") or run.num_machines)
    if others < needed:
        message = (
            f"{failed} It is not put aside, because only {others} other machines are known and the run needs {needed}."
        )
    else:
        machines.cordon(session=session, host=host, reason=reason)
        message = (
            f"{failed} It is put aside: runs on several machines avoid it until `lathe machines use {host}` or the button "
            "on the page System takes it back."
        )
    history.note(session=session, run=run, message=message, level="warning", kind="put_aside")


def cordon_gpus(*, session: Session, run: Run, error: dict[str, Any] | None, reason: str) -> bool:
    """Puts the GPUs aside whose fault ended the attempt, by its diagnosis: no run leases them until a user takes them back.

    False if no GPU is at fault, or without them too few are left for the run.
    """
    faulty = _faulty_gpus(run, error or {})
    avoided, offered = machines.cordoned(session=session).union(faulty), machines.reporting(session=session)
    left = [name for machine in offered for name in machines.usable_devices(machine) if name not in avoided]
    if not faulty or len(left) < len(run.devices):
        return False
    for device in faulty:
        machines.cordon(session=session, host=device, reason=reason)
    message = f"{', '.join(faulty)} put aside: {reason} `lathe machines use NAME` or the page System takes it back."
    history.note(session=session, run=run, message=message, level="warning", kind="put_aside")
    return True


def _faulty_gpus(run: Run, error: dict[str, Any]) -> list[str]:
    """The GPU of the rank that failed if it is broken; all of the run if their machine's driver is."""
    cause, rank = (error.get("diagnosis") or {}).get("cause"), error.get("rank")
    gpus = [device for device in run.devices if "/cuda:" in device]
    if cause in _OF_DRIVER or (cause == _OF_GPU and len(gpus) == 1):
        return gpus
    return gpus[rank : rank + 1] if cause == _OF_GPU and isinstance(rank, int) else []


def _hosts(run: Run) -> list[str]:
    return list(dict.fromkeys(device.partition("/")[0] for device in run.devices))


def _short(name: str) -> str:
    return name.partition(".")[0].lower()


def _others(session: Session, run: Run, host: str) -> int:
    """How many other machines could run it, as far as is known: those that report, or Slurm's nodes."""
    avoided = {host, *(name for name in machines.cordoned(session=session) if "/" not in name)}  # others are devices
    if any(JOB in device for device in run.devices):
        return max(_slurm_nodes(session, run) - len(avoided), 0)
    reporting = {machine.host for machine in machines.reporting(session=session) if not machine.draining}
    return len(reporting - avoided)


def _slurm_nodes(session: Session, run: Run) -> int:
    """The usable nodes of the run's partition, else of the default one."""
    given = slurm_options.parse(get_settings().slurm_options) | slurm_options.parse(run.config.get("slurm_options"))
    wanted = given.get("partition", "").split(",")
    pools = [pool for report in machines.engine_reports(session=session) for pool in report.capacity.get("pools", ())]
    chosen = [pool for pool in pools if pool["name"] in wanted] or [pool for pool in pools if pool.get("is_default")]
    return sum(
        number for pool in chosen for state, number in pool["states"].items() if not state.lower().startswith(_UNUSABLE)
    )
