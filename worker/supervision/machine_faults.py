"""Counts attempts that ended by a fault of a machine, puts a machine aside that has failed twice, and a GPU that has failed."""

import re
from collections.abc import Iterable
from typing import Any

from sqlmodel import Session

from training.config import slurm_options
from worker.machine.devices import JOB
from worker.settings import get_settings
from worker.store import database, history, machines
from worker.store.tables import Run

_UNUSABLE = ("down", "drain", "fail", "boot", "unk", "no_")  # states of Slurm's nodes
_KILLED = re.compile(r"Root Cause(?:(?!Root Cause).)*?host\s*:\s*(\S+)(?:(?!Root Cause).)*?exitcode\s*:\s*-9\b", re.S)
_OF_GPU, _OF_DRIVER = "gpu_hardware", ("gpu_not_found", "driver_mismatch", "driver_too_old")  # causes in diagnoses
_NODE_FAILURE = re.compile(r"(?:[Nn]ode failure on|Task launch for \S+ failed on node) ([^\s:,]+)")


def node_failure(log: Iterable[str]) -> str:
    """The machine that Slurm found to have failed, or on which it could not launch the ranks; empty if none."""
    found = _NODE_FAILURE.search("\n".join(log))
    return found[1].rstrip(".") if found else ""


def killed_on(log: Iterable[str]) -> str:
    """The machine on which a rank was killed (torchrun's report), else that of `node_failure`; empty if none."""
    lines = list(log)
    found = _KILLED.search("\n".join(lines))
    return node_failure(lines) or (found[1].rstrip(".,") if found else "")


def count(*, session: Session, run: Run, name: str, reason: str) -> None:
    """Counts a failure of a machine of the run's attempt, by its name; after the second one puts it aside, or says why not.

    Does nothing if the run has one machine, or no machine of this name.
    """
    settings, hosts = get_settings(), _hosts(run)
    host = next((host for host in hosts if _short(host) == _short(name)), None)
    hours = settings.put_aside_hours
    if host is None or _machines(run) < 2 or not hours:
        return
    number = machines.add_failure(
        session=session, host=host, run_id=run.id, attempt=run.attempt, reason=reason, within_seconds=hours * 3600
    )
    if number < machines.FAILURES or host in machines.cordoned(session=session):
        return
    failed = f"Machine {host} ended {number} attempts within {hours:g} h, the latest: {reason}"
    others, needed = _others(session, run, host), int(run.config.get("min_machines") or _machines(run))
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
    history.note(
        session=session, run_id=run.id, attempt=run.attempt, message=message, level="warning", kind="put_aside"
    )


def put_gpus_aside(*, session: Session, run: Run, error: dict[str, Any] | None, reason: str) -> bool:
    """Puts the GPUs aside whose fault ended the attempt, by its diagnosis: no run leases them until a user takes them back.

    False if no GPU is at fault, or without them too few are left for the run.
    """
    faulty = _faulty_gpus(run, error or {})
    now, avoided = database.now(session=session), machines.cordoned(session=session).union(faulty)
    offered = [machine for machine in machines.listing(session=session) if machines.is_fresh(machine, now)]
    left = [name for machine in offered for name in machines.usable_devices(machine) if name not in avoided]
    if not faulty or len(left) < len(run.devices):
        return False
    for device in faulty:
        machines.cordon(session=session, host=device, reason=reason)
    message = f"{', '.join(faulty)} put aside: {reason} `lathe machines use NAME` or the page System takes it back."
    history.note(
        session=session, run_id=run.id, attempt=run.attempt, message=message, level="warning", kind="put_aside"
    )
    return True


def _faulty_gpus(run: Run, error: dict[str, Any]) -> list[str]:
    """The GPU of the rank that failed if it is broken; all of the run if their machine's driver is."""
    cause, rank = (error.get("diagnosis") or {}).get("cause"), error.get("rank")
    gpus = [device for device in run.devices if "/cuda:" in device]
    if cause in _OF_DRIVER or (cause == _OF_GPU and len(gpus) == 1):
        return gpus
    return gpus[rank : rank + 1] if cause == _OF_GPU and isinstance(rank, int) else []


def _machines(run: Run) -> int:
    return int((run.config | run.stepped_down).get("num_machines", 1))


def _hosts(run: Run) -> list[str]:
    return list(dict.fromkeys(device.partition("/")[0] for device in run.devices))


def _short(name: str) -> str:
    return name.partition(".")[0].lower()


def _others(session: Session, run: Run, host: str) -> int:
    """How many other machines could run it, as far as is known: those that report, or Slurm's nodes."""
    avoided = {host, *(name for name in machines.cordoned(session=session) if "/" not in name)}  # others are devices
    if any(JOB in device for device in run.devices):
        return max(_slurm_nodes(session, run) - len(avoided), 0)
    now = database.now(session=session)
    listed = machines.listing(session=session)
    reporting = {one.host for one in listed if machines.is_fresh(one, now) and not one.draining}
    return len(reporting - avoided)


def _slurm_nodes(session: Session, run: Run) -> int:
    """The usable nodes of the run's partition, else of the default one."""
    given = slurm_options.parse(get_settings().slurm_options) | slurm_options.parse(run.config.get("slurm_options"))
    wanted = given.get("partition", "").split(",")
    pools = [pool for report in machines.engine_reports(session=session) for pool in report.capacity["pools"]]
    chosen = [pool for pool in pools if pool["name"] in wanted] or [pool for pool in pools if pool["is_default"]]
    return sum(
        number for pool in chosen for state, number in pool["states"].items() if not state.lower().startswith(_UNUSABLE)
    )
