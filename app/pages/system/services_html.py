"""Database, broker, queue, versions and limits as HTML, from the document of the installation. Pure."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import ago, each, facts, panel, run_link, table
from app.words import numbers
from app.words.system import limits
from training.units import byte_size

Document = dict[str, Any]


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
    return _pairs(
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
    heads = each("<th>{}</th>", [("Package",), ("Web server",), ("Workers",)])
    return table("figures versions", heads, each("<tr><td>{}</td><td>{}</td><td>{}</td></tr>", rows))


def _of_workers(version: Document) -> Markup:
    """The versions of the workers; several are marked."""
    found = version["workers"]
    text = ", ".join(found) or "-"
    if len(found) > 1:
        return Markup('<span class="tag warn" title="The workers differ">{}</span>').format(text)
    return Markup("{}").format(text)


def _pairs(pairs: Sequence[tuple[str, Any]]) -> Markup:
    return Markup('<table class="pairs">{}</table>').format(each("<tr><th>{}</th><td>{}</td></tr>", pairs))
