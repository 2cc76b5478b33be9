"""`lathe system`: machines, devices, disk, queue and services of the installation, as text or JSON."""

import json
from collections.abc import Sequence
from typing import Any

import click

from app.cli.client import MACHINES, connect, path_of
from app.cli.options import CommandError
from app.format import numbers
from app.format import system_text as words
from training.units import NONE, byte_size
from worker.choices import Freeable
from worker.disk.usage import FileKind

_PATH = "/api/system"
_SECONDS = 600.0  # disks can be large


def system(*, kinds: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Prints the installation, whose disk use is measured first; with `kinds`, frees disk space after a confirmation instead."""
    if not kinds:
        document = read()
        click.echo(json.dumps(document) if as_json else page(document))
        return
    if not yes:
        _confirm(kinds)
    outcome = freed(kinds)
    if as_json:
        click.echo(json.dumps(outcome))
    else:
        click.echo(f"Freed {byte_size(outcome['bytes'])} in {numbers.plural(outcome['files'], 'file', 'files')}.")
    if outcome["problems"]:
        raise CommandError("disk", None, "; ".join(outcome["problems"]), "Correct it and free again.")


def _confirm(kinds: Sequence[str]) -> None:
    """Asks before anything is deleted; ends the command on no."""
    offers = {offer["kind"]: offer for offer in read()["disk"]["freeable"]}
    click.echo(words.losses([offers[kind] for kind in kinds]), err=True)
    click.confirm("Delete them?", abort=True, err=True)


def page(document: dict[str, Any]) -> str:
    """The installation as text."""
    parts = [", ".join(words.summary(document["machines"], document["queue"]))]
    for heading, body in (
        ("Machines", _machines(document["machines"], document["time"])),
        ("Put aside after failures: lathe machines use NAME", _aside(document["put_aside"])),
        ("Devices", _devices(document)),
        ("Accounts", _accounts(document["accounts"])),
        ("Disk", _disk(document["disk"])),
        ("Largest runs", _largest(document["disk"]["largest_runs"])),
        ("Can be freed: lathe system --free KIND", _freeable(document["disk"]["freeable"])),
        ("Retention", numbers.pairs(words.retention(document["retention"]))),
        ("Services", numbers.pairs(services(document))),
        ("Limits", numbers.pairs(words.limits(document["limits"]))),
    ):
        parts += ["", heading, body] if body else []
    return "\n".join(parts)


def _machines(machines: list[dict[str, Any]], now: float) -> str:
    if not machines:
        return f"  {words.NO_WORKER}"
    rows = [["  MACHINE", "STATE", "LAST SEEN", "LOAD", "MEMORY", "DISK FREE"]]
    for one in machines:
        state = (
            f"{words.STATES[one['state']]} ({one['overload']})"
            if one["state"] == "overloaded"
            else words.STATES[one["state"]]
        )
        seen = f"{numbers.duration(max(now - one['last_seen'], 0))} ago"
        load = f"{one['load']:.1f} on {numbers.plural(one['cores'], 'core', 'cores')}"
        memory = words.used_of(one["memory_used_bytes"], one["memory_bytes"])
        rows.append([f"  {one['name']}", state, seen, load, memory, byte_size(one["disk_free_bytes"])])
    findings = [f"  {one['name']}: {words.finding_words(finding)}" for one in machines for finding in one["findings"]]
    return "\n".join([numbers.table(rows), *findings])


def _aside(machines: list[dict[str, Any]]) -> str:
    rows = [["  MACHINE", "SINCE", "LATEST FAILURE"]]
    rows += [[f"  {one['host']}", numbers.when(one["since"]), one["reason"]] for one in machines]
    return numbers.table(rows) if machines else ""


def _devices(document: dict[str, Any]) -> str:
    rows = [["  DEVICE", "MEMORY", "TEMPERATURE", "LOAD", "POWER", "RUN", "OWNER", "STEP", "LEASE RENEWED"]]
    for machine in document["machines"]:
        for device in machine["devices"]:
            measured = [
                words.used_of(device.get("memory_used_bytes"), device["memory_bytes"]),
                words.celsius(device.get("temperature_celsius")),
                numbers.percent(device.get("utilization"), 0),
                words.watts(device.get("power_watts")),
            ]
            held = _lease(device["lease"], document["time"])
            reasons = [("unusable", device.get("problem")), ("busy", device.get("others"))]
            why = next((f"{word}: {reason}" for word, reason in reasons if reason), "")
            rows.append(
                [f"  {device['name']}", *measured, *([why, "", "", ""] if why and not device["lease"] else held)]
            )
    rows += [
        [f"  {lease['device']}", *[NONE] * 4, *_lease(lease, document["time"])] for lease in document["other_leases"]
    ]
    return numbers.table(rows) if len(rows) > 1 else ""


def _accounts(accounts: list[dict[str, Any]]) -> str:
    rows = [["  ACCOUNT", "DEVICES", "WAITING", "DISK"]]
    rows += [[f"  {one['name']}", *words.account_cells(one)] for one in accounts]
    return numbers.table(rows) if accounts else ""


def _lease(lease: dict[str, Any] | None, now: float) -> list[str]:
    if lease is None:
        return ["idle", "", "", ""]
    renewed = NONE if lease["renewed_at"] is None else f"{numbers.duration(max(now - lease['renewed_at'], 0))} ago"
    return [f"{numbers.shorten(lease['name'], 30)} ({lease['run_id']})", lease["owner"], words.step_of(lease), renewed]


def _disk(disk: dict[str, Any]) -> str:
    if disk["kinds"] is None:
        return f"  {disk['problem']}"
    rows = [["  KIND", "SIZE", "FILES"]]
    for kind, size in disk["kinds"].items():
        rows.append([f"  {words.KINDS[FileKind(kind)][0]}", byte_size(size["bytes"]), numbers.count(size["files"])])
    return numbers.table(rows, right=frozenset({1, 2}))


def _largest(runs: list[dict[str, Any]]) -> str:
    rows = [["  RUN", "NAME", "STATUS", "SIZE", "OF THAT CHECKPOINTS"]]
    for run in runs:
        sizes = [byte_size(run["bytes"]), byte_size(run["checkpoint_bytes"])]
        rows.append(
            [f"  {run['id']}", numbers.shorten(run["name"], 40), run["status"] or "not in the database", *sizes]
        )
    return numbers.table(rows, right=frozenset({3, 4})) if runs else ""


def _freeable(freeable: list[dict[str, Any]]) -> str:
    rows = [["  KIND", "SIZE", "WHAT"]]
    for one in freeable:
        label, lost = words.FREEABLE[Freeable(one["kind"])]
        rows.append([f"  {one['kind']}", byte_size(one["bytes"]), f"{label}. {lost}"])
    return numbers.table(rows, right=frozenset({1})) if freeable else ""


def services(document: dict[str, Any]) -> list[tuple[str, str]]:
    """Database, broker, queue and versions, each in a line."""
    data, broker, oldest = document["database"], document["broker"], document["queue"]["oldest"]
    latency = f"{data['latency_ms']:.1f} ms"
    reached = (
        f"{broker['kind']} {broker['version']} at {broker['address']}, {broker['waiting']} messages waiting"
        if broker["reachable"]
        else f"unreachable: {broker['problem']} {broker['fix']}"
    )
    waited = numbers.duration(max(document["time"] - oldest["queued_at"], 0)) if oldest else ""
    versions = (
        f"{one['package']} {one['here'] or 'not installed'}"
        + (f" (workers: {', '.join(one['workers'])})" if one["workers"] not in ([], [one["here"]]) else "")
        for one in document["versions"]
    )
    return [
        ("Database", f"{data['kind']} {data['version']} at {data['address']}, {byte_size(data['bytes'])}, {latency}"),
        ("Broker", reached),
        ("Oldest queued", f"{oldest['name']} ({oldest['run_id']}), {waited}" if oldest else "none"),
        ("Versions", "\n".join(versions)),
    ]


def read() -> dict[str, Any]:
    """The installation, as `lathe system --json` prints it; measures the disk use first."""
    return dict(connect().send("GET", _PATH, params={"wait": True}, seconds=_SECONDS))


def freed(kinds: Sequence[str]) -> dict[str, Any]:
    """Frees disk space, and returns what was freed and what could not be."""
    connect().send("POST", f"{_PATH}/free", json={"kinds": list(kinds)}, seconds=_SECONDS)
    return dict(read()["disk"]["freeing"])


def uncordon(name: str) -> None:
    """Takes back a machine that was put aside after failures."""
    connect().send("POST", path_of(MACHINES, name, "/use"))
