"""Accounts, engines, machines put aside, services, versions and limits as HTML, from the document of the installation. Pure."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import ago, bar, each, facts, pairs_table, panel, plain_table, run_link, send_button, table
from app.pages.system.machines_html import level
from app.words import numbers
from app.words.system import account_cells, limits
from training.units import NONE, byte_size

Document = dict[str, Any]

_ACCOUNT_HEADS = ("Account", "Devices", "Waiting runs", "Disk")
_USES = (("devices", "max_devices"), ("waiting", "max_waiting"), ("disk_bytes", "max_disk_bytes"))
_STALE_SECONDS = 60.0


def services_html(document: Document) -> Markup:
    """The panels about the services, versions and limits."""
    panels = [
        panel("Services", _services(document), classes="half"),
        panel("Versions", _versions(document["versions"]), classes="half"),
        panel("Limits", facts(limits(document["limits"])), classes="whole"),
    ]
    return Markup('<div class="columns">{}</div>').format(Markup("").join(panels))


def _services(document: Document) -> Markup:
    database, broker, queue = document["database"], document["broker"], document["queue"]
    latency = f"{database['latency_ms']:.1f} ms for a trivial query"
    about = f"{database['kind']} {database['version']}, {byte_size(database['bytes'])}, {latency}"
    return pairs_table(
        [
            ("Database", Markup("{}<br><code>{}</code>").format(about, database["address"])),
            ("Broker", _broker(broker)),
            ("Queue", f"{numbers.plural(queue['waiting'], 'run')} queued, {queue['running']:,} running"),
            ("Waiting longest", _oldest(queue["oldest"])),
        ]
    )


def _broker(broker: Document) -> Markup:
    if broker["reachable"]:
        waiting = numbers.plural(broker["waiting"], "message")
        text = f"{broker['kind']} {broker['version']}, {waiting} waiting"
        return Markup("{}<br><code>{}</code>").format(text, broker["address"])
    template = Markup('<div class="alert" role="alert"><b>The broker is unreachable.</b> {} <em>{}</em></div>')
    return template.format(broker["problem"], broker["fix"])


def _oldest(oldest: Document | None) -> Markup:
    if oldest is None:
        return Markup("no run")
    link = run_link(oldest["run_id"], oldest["name"])
    return Markup("{}, queued {}").format(link, ago(oldest["queued_at"]))


def _versions(versions: Sequence[Document]) -> Markup:
    rows = [(one["package"], one["here"] or "not installed", _of_workers(one)) for one in versions]
    return plain_table("figures versions", ["Package", "Web server", "Workers"], rows)


def _of_workers(version: Document) -> Markup:
    """The versions of the workers; several are marked."""
    found = version["workers"]
    text = ", ".join(found) or "-"
    if len(found) > 1:
        return Markup('<span class="tag warn" title="The workers differ">{}</span>').format(text)
    return Markup("{}").format(text)


def accounts_html(accounts: Sequence[dict[str, Any]]) -> Markup:
    """A panel with a row for each account; nothing if there is none."""
    if not accounts:
        return Markup("")
    heads = each('<th scope="col">{}</th>', [(head,) for head in _ACCOUNT_HEADS])
    body = table("figures accounts", heads, Markup("").join(map(_account, accounts)))
    return Markup('<div class="machines">{}</div>').format(panel("Accounts", body, classes="whole"))


def _account(account: dict[str, Any]) -> Markup:
    shares = [_used_share(account[use], account[limit]) for use, limit in _USES]
    cells = zip(_ACCOUNT_HEADS[1:], shares, account_cells(account), strict=True)
    drawn = each(
        "<td>{} {}</td>", [(_used_bar(share, f"{account['name']}: {head}"), text) for head, share, text in cells]
    )
    return Markup("<tr><td>{}</td>{}</tr>").format(account["name"], drawn)


def _used_share(use: int | None, limit: int | None) -> float | None:
    """The share in use; None without a limit, or before the use is measured."""
    return None if use is None or limit is None else min(use / limit, 1.0)


def _used_bar(share: float | None, label: str) -> Markup:
    return Markup("") if share is None else bar(share, label=label, classes=level(share))


def aside_html(machines: Sequence[dict[str, Any]], *, admin: bool) -> Markup:
    """A panel with each machine, its latest failure, and for admins a button that takes it back; nothing if there is none."""
    if not machines:
        return Markup("")
    rows = each(
        "<li><b>{}</b><span>put aside {} after {}: {}</span>{}</li>",
        [
            (
                one["host"],
                ago(one["since"]),
                "a failure" if "/" in one["host"] else "two failures",
                one["reason"],
                send_button("Use again", {"use": one["host"]}, f"Use {one['host']} again") if admin else "",
            )
            for one in machines
        ],
    )
    body = Markup(
        '<p class="note">Runs on several machines avoid these machines; no run uses these GPUs.</p><ul class="put-aside">{}</ul>'
    ).format(rows)
    return Markup('<div class="machines">{}</div>').format(panel("Put aside", body, classes="whole"))


def engines_html(engines: Sequence[Document]) -> Markup:
    """A panel for each engine, with its partitions; nothing if runs only use the workers' own devices."""
    panels = Markup("").join(_engine(engine) for engine in engines)
    return Markup('<div class="machines">{}</div>').format(panels) if panels else panels


def _engine(engine: Document) -> Markup:
    counts = f"{engine['running']:,} running, {engine['waiting']:,} waiting"
    body = _engine_problem(engine) + (_pools(engine["pools"]) if engine["pools"] else Markup(""))
    return panel(f"Engine {engine['engine'].capitalize()}", body, classes="whole", aside=counts)


def _engine_problem(engine: Document) -> Markup:
    alert = Markup('<div class="alert" role="alert"><b>{}</b> {}</div>')
    if engine["problem"]:
        return alert.format("Slurm does not answer.", f"{engine['problem']} Jobs go on, and waiting runs wait.")
    if engine["age_seconds"] > _STALE_SECONDS:
        return alert.format("No worker reports.", f"The last report is {numbers.duration(engine['age_seconds'])} old.")
    return Markup("")


def _pools(pools: Sequence[Document]) -> Markup:
    rows = [
        (
            f"{pool['name']}{' (default)' if pool['is_default'] else ''}",
            f"{pool['machines']:,}",
            ", ".join(f"{number:,} {state}" for state, number in sorted(pool["states"].items())),
            f"{pool['gpus']:,}" if pool["gpus"] else NONE,
            pool["time_limit"] or NONE,
        )
        for pool in pools
    ]
    return plain_table("figures", ["Partition", "Nodes", "States", "GPUs", "Time limit"], rows)
