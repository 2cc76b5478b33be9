"""Engines with machines of their own as HTML, from the document of the installation. Pure."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import each, panel, table
from app.words import numbers
from training.units import NONE

Document = dict[str, Any]
_STALE_SECONDS = 60.0


def engines_html(engines: Sequence[Document]) -> Markup:
    """A panel for each engine, with its partitions; nothing if runs only use the workers' own devices."""
    panels = Markup("").join(_engine(engine) for engine in engines)
    return Markup('<div class="machines">{}</div>').format(panels) if panels else panels


def _engine(engine: Document) -> Markup:
    counts = f"{engine['running']:,} running, {engine['waiting']:,} waiting"
    body = _problem(engine) + (_pools(engine["pools"]) if engine["pools"] else Markup(""))
    return panel(f"Engine {engine['engine'].capitalize()}", body, classes="whole", aside=counts)


def _problem(engine: Document) -> Markup:
    alert = Markup('<div class="alert" role="alert"><b>{}</b> {}</div>')
    if engine["problem"]:
        return alert.format("Slurm does not answer.", f"{engine['problem']} Jobs go on, and waiting runs wait.")
    if engine["age_seconds"] > _STALE_SECONDS:
        return alert.format("No worker reports.", f"The last report is {numbers.duration(engine['age_seconds'])} old.")
    return Markup("")


def _pools(pools: Sequence[Document]) -> Markup:
    heads = each("<th>{}</th>", [("Partition",), ("Nodes",), ("States",), ("GPUs",), ("Time limit",)])
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
    return table("figures", heads, each("<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>", rows))
