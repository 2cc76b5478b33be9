"""Which devices of which machines a run on several of them gets: all of them at once, or none."""

from collections.abc import Collection, Iterable
from itertools import chain

from sqlmodel import Session, select

from training.config.choices import Strategy
from training.config.machine import A_CLUSTER
from training.config.run_config import Changes, RunConfig, stepped_down
from training.rules import check
from worker.machine import devices
from worker.machine.devices import CPU
from worker.machine.process_identity import hostname
from worker.store import machines, nodes
from worker.store.tables import DeviceLease, Run


def place(*, session: Session, run: Run, here: list[str], yielding: Collection[str] = ()) -> list[str] | None:
    """The devices of all machines of `run`, those of this machine (`here`) first; None if it cannot start now.

    Leased devices that are `yielding` count as free.

    If machines are missing, a run with `min_machines` that has started before continues on those that are left. Machines that are
    only busy are waited for.
    """
    config = settings_of(run)
    if hostname() in machines.cordoned(session=session):
        return None
    fewest = config.min_machines if run.attempt and config.min_machines else config.num_machines
    existing, free = _further(session, config, on_cpu=here[0].endswith(f"/{CPU}"), yielding=yielding)
    if len(existing) + 1 >= config.num_machines:
        fewest = config.num_machines
    for count in range(config.num_machines, fewest - 1, -1):
        if changes(config, count) is not None and len(free) >= count - 1:
            return [*here, *chain.from_iterable(list(free.values())[: count - 1])]
    return None


def changes(config: RunConfig, count: int) -> Changes | None:
    """The settings that change on `count` machines, with the same global batch size; None if the run cannot have that many."""
    if count == config.num_machines:
        return {}
    accumulation, rest = divmod(config.gradient_accumulation_steps * config.num_machines, count)
    changed: Changes = {
        "num_machines": count,
        "num_processes": count * config.processes_per_machine,
        "gradient_accumulation_steps": accumulation,
    }
    if changed["num_processes"] == 1:
        changed["strategy"] = Strategy.SINGLE.value
    if rest:
        return None
    smaller = stepped_down(config, changed | {"min_machines": None})
    return None if any(conflict.blocking for conflict in check(smaller, A_CLUSTER)) else changed


def settings_of(run: Run) -> RunConfig:
    """The run's settings, with those that were changed after out-of-memory errors or for its resume."""
    return stepped_down(run.asked, run.stepped_down)


def hosts(leased: Iterable[str]) -> dict[str, list[str]]:
    """The devices by host, in the order in which they are leased."""
    found: dict[str, list[str]] = {}
    for device in leased:
        found.setdefault(device.partition("/")[0], []).append(device)
    return found


def reason_to_wait(*, session: Session, run: Run) -> str:
    """Why a run on several machines does not start, as a sentence."""
    config = settings_of(run)
    existing, free = _further(session, config, on_cpu=None)
    each = config.processes_per_machine
    wanted = f"Waits for {config.num_machines} machines with {each} free {'device' if each == 1 else 'devices'} each"
    are = "is" if len(free) == 1 else "are"
    avoided = sorted(machines.cordoned(session=session))
    hint = f" Put aside after failures: {', '.join(avoided)} (lathe machines use NAME)." if avoided else ""
    return f"{wanted}: {len(free)} {are} free, of {len(existing)} that report as many devices.{hint}"


def _further(
    session: Session, config: RunConfig, *, on_cpu: bool | None, yielding: Collection[str] = ()
) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """The hosts that report enough devices of the same kind, and those of them with enough free ones, with the devices to take.

    `on_cpu`: None counts this machine and both kinds.
    """
    taken = {*session.exec(select(DeviceLease.device)), *nodes.devices_in_use(session=session)}.difference(yielding)
    lost = nodes.lost_hosts(session=session) | machines.cordoned(session=session)
    owned: dict[str, list[str]] = {}
    for machine in machines.reporting(session=session):
        # Another worker's devices may only be taken while it would start runs itself.
        if not machine.draining and machine.host not in lost:
            names = [name for name in machines.usable_devices(machine) if name not in lost]
            owned.setdefault(machine.host, []).extend(
                name for name in names if on_cpu is None or name.endswith(f"/{CPU}") == on_cpu
            )
    if on_cpu is not None:
        owned.pop(hostname(), None)
    existing, free = {}, {}
    for host, names in owned.items():
        if names and (all_of_it := devices.choose(config.processes_per_machine, names)):
            existing[host] = all_of_it
            left = [name for name in names if name not in taken]
            if left and (chosen := devices.choose(config.processes_per_machine, left)):
                free[host] = chosen
    return existing, free
