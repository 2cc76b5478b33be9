"""Machines and their devices as HTML, from the document of the installation. Pure."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import ago, bar, each, note_html, run_link, send_button, status_dot, table
from app.words import numbers
from app.words.system import STATES, celsius, device_name, device_names, finding_words, step_of, used_of, watts
from training.units import NONE
from worker.store.system.machines import SERVING

Document = dict[str, Any]
_COLORS = {"ready": "finished", "overloaded": "stopped", "draining": "stopped", "stopped": "queued", "lost": "failed"}
_DEVICE_HEADS = ("Device", "Memory in use", "", "Temp.", "Load", "Power", "Run")
_RUN_HEADS = ("Run", "Owner", "Step", "Devices", "Lease renewed", "Expires in")


def machines_html(document: Document, *, admin: bool) -> Markup:
    """All machines with their devices and runs, or how to start a worker."""
    machines = document["machines"]
    if not machines:
        return _empty(document["other_leases"])
    cards = Markup("").join(_machine(machine, admin=admin) for machine in machines)
    return Markup('<div class="machines">{}</div>{}').format(cards, _others(document["other_leases"]))


def _empty(leases: Sequence[Document]) -> Markup:
    template = Markup(
        '<div class="empty"><h2>No worker has reported</h2><p>Start one with <code>lathe worker</code>, or everything on this '
        "machine with <code>lathe up</code>. Queued runs wait until then.</p></div>{}"
    )
    return template.format(_others(leases))


def _machine(machine: Document, *, admin: bool) -> Markup:
    lost = machine["state"] in ("lost", "stopped")
    removal = send_button("Remove", {"remove": machine["name"]}, f"Remove {machine['name']}") if lost and admin else ""
    head = Markup('<header><h2>{}</h2>{}<span class="model">{}</span><span class="aside">{}</span></header>').format(
        machine["name"], _state(machine), _models(machine["devices"]), removal
    )
    body = (
        _about(machine)
        + _findings(machine["findings"])
        + _measures(machine)
        + _devices(machine["devices"])
        + _runs(machine["devices"])
    )
    return Markup('<section class="panel machine{}">{}{}</section>').format(" lost" if lost else "", head, body)


def _findings(findings: Sequence[Document]) -> Markup:
    """What the worker found wrong when it started, with the cure."""
    colors = {"failed": "bad", "warning": "warn"}
    rows = [(colors[finding["state"]], finding["state"], finding_words(finding)) for finding in findings]
    return each('<p class="note"><span class="tag {}">{}</span> {}</p>', rows)


def _models(devices: Sequence[Document]) -> str:
    """The models of the devices: "8 x NVIDIA H100"."""
    labels = Counter(device["label"] for device in devices)
    return ", ".join(label if number == 1 else f"{number} x {label}" for label, number in labels.items())


def _state(machine: Document) -> Markup:
    color, word = _COLORS[machine["state"]], STATES[machine["state"]]
    return status_dot(color, word)


def _about(machine: Document) -> Markup:
    """Why the machine starts no runs, and what happens with those that it has."""
    seen, held = ago(machine["last_seen"]), _run_names(machine["devices"])
    runs = Markup(" It held {}.").format(held) if held else Markup("")
    match machine["state"]:
        case "overloaded":
            return note_html(Markup("It starts no runs at present: {}").format(machine["overload"]))
        case "draining":
            return note_html(Markup("Its worker is stopping and starts no runs."))
        case "stopped":
            return note_html(Markup("Its worker was stopped, last seen {}.{}").format(seen, runs))
        case "lost":
            requeued = Markup(" Other workers requeue a run when its lease expires.") if held else Markup("")
            return note_html(Markup("Last seen {}.{}{}").format(seen, runs, requeued))
    return Markup("")


def _measures(machine: Document) -> Markup:
    """Load, memory and disk of the machine in a line."""
    memory, disk = machine["memory_used_bytes"], machine["disk_bytes"] - machine["disk_free_bytes"]
    measures = [
        ("Load", Markup("{} on {}").format(f"{machine['load']:.1f}", numbers.plural(machine["cores"], "core"))),
        ("RAM", _used(memory, machine["memory_bytes"], "RAM in use")),
        ("Disk of the data folder", _used(disk, machine["disk_bytes"], "disk in use")),
    ]
    return Markup('<dl class="facts">{}</dl>').format(each("<div><dt>{}</dt><dd>{}</dd></div>", measures))


def _used(used: float, total: float, label: str) -> Markup:
    share = used / total if total else 0.0
    return Markup("{} {}").format(bar(share, label=label, classes=level(share)), used_of(used, total))


def level(share: float) -> str:
    """The color of a full bar."""
    return "failed" if share >= 0.97 else "stopped" if share >= 0.9 else ""


def _devices(devices: Sequence[Document]) -> Markup:
    heads = each('<th scope="col">{}</th>', [(head,) for head in _DEVICE_HEADS])
    return table("devices", heads, Markup("").join(map(_device, devices)))


def _device(device: Document) -> Markup:
    used, total, lease = device.get("memory_used_bytes"), device["memory_bytes"], device["lease"]
    drawn = "" if used is None or not total else bar(used / total, label="memory in use")
    run = _run_link(lease) if lease else _unused(device)
    cells = [
        ("", Markup('<span title="{}">{}</span>').format(device["label"], device_name(device["name"]))),
        ("", drawn),
        ("number", used_of(used, total)),
        ("number", celsius(device.get("temperature_celsius"))),
        ("number", numbers.percent(device.get("utilization"), 0)),
        ("number", watts(device.get("power_watts"))),
        ("name", run),
    ]
    return Markup("<tr>{}</tr>").format(each('<td class="{}">{}</td>', cells))


def _unused(device: Document) -> Markup:
    """That a device is idle, or why no run gets it."""
    for kind, word, reason in (("bad", "unusable", device.get("problem")), ("warn", "busy", device.get("others"))):
        if reason:
            return Markup('<span class="tag {}">{}</span> {}').format(kind, word, reason)
    return Markup('<span class="idle">idle</span>')


def _runs(devices: Sequence[Document]) -> Markup:
    """The runs on these devices, each with its lease."""
    held = [device["lease"] for device in devices if device["lease"]]
    return _lease_table(held) if held else Markup("")


def _lease_table(leases: Sequence[Document]) -> Markup:
    runs = {lease["run_id"]: lease for lease in leases}
    heads = each('<th scope="col">{}</th>', [(head,) for head in _RUN_HEADS])
    rows = [
        (
            _run_link(lease),
            lease["owner"],
            step_of(lease),
            device_names([one["device"] for one in leases if one["run_id"] == run_id]),
            ago(lease["renewed_at"]),
            _left(lease["expires_at"]),
        )
        for run_id, lease in runs.items()
    ]
    cells = '<td class="name">{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>'
    return table("devices leases", heads, each(f"<tr>{cells}</tr>", rows))


def _left(expires: float | None) -> Markup:
    if expires is None:
        return Markup("{}").format(NONE)
    return Markup('<span data-until="{}"></span>').format(f"{expires:.0f}")


def _run_link(lease: Document) -> Markup:
    if lease["phase"] == SERVING:
        return Markup('<a href="/playground" title="{}">{}</a>').format(lease["name"], lease["name"])
    return run_link(lease["run_id"], lease["name"])


def _run_names(devices: Sequence[Document]) -> Markup:
    runs = {device["lease"]["run_id"]: device["lease"] for device in devices if device["lease"]}
    return Markup(", ").join(map(_run_link, runs.values()))


def _others(leases: Sequence[Document]) -> Markup:
    """Leases of devices that no machine reports: of an older worker, or one whose machine was removed."""
    if not leases:
        return Markup("")
    head = Markup('<header><h2>Leases of devices that no machine reports</h2></header><p class="note">{}</p>').format(
        "Their worker is older than this version, or its machine was removed."
    )
    return Markup('<section class="panel machine">{}{}</section>').format(head, _lease_table(leases))
