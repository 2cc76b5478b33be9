"""Disk use, what can be freed, and the retention rules as HTML, from the document of the installation. Pure."""

from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from app.pages.common.html import (
    ago,
    bar,
    each,
    facts,
    note_html,
    panel,
    plain_table,
    run_link,
    send_button,
    status_word,
    table,
)
from app.words import numbers
from app.words.system import FREEABLE, KINDS, retention
from training.units import NONE, byte_size
from worker.disk.offers import Freeable
from worker.store.tables import Status

Document = dict[str, Any]


def disk_html(disk: Document, rules: Document, *, admin: bool) -> Markup:
    """The panels about the disk: use by kind, largest runs, what can be freed, and retention."""
    panels = [
        panel("Disk use by kind", _problem(disk) + _kinds(disk["kinds"]), classes="part", aside=_age(disk)),
        panel("Largest runs", _largest(disk), classes="part"),
        panel("Free disk space", _freeing(disk["freeing"]) + _freeable(disk, admin=admin), classes="last part"),
        panel("Retention rules", _retention(rules), classes="whole"),
    ]
    return Markup('<div class="columns">{}</div>').format(Markup("").join(panels))


def confirmation(kinds: Sequence[Freeable], disk: Document) -> Markup:
    """The question before files are deleted: what is lost, and how much is freed."""
    sizes = {one["kind"]: one for one in disk["freeable"]}
    total = sum(sizes[kind.value]["bytes"] for kind in kinds)
    items = [(*FREEABLE[kind], _size(sizes[kind.value])) for kind in kinds]
    lines = each("<li><b>{}</b> {} <em>{}</em></li>", [(label, size, lost) for label, lost, size in items])
    template = Markup('<h2>Delete {}?</h2><ul class="to-free">{}</ul><p>{}</p>')
    checked = "Files of queued and running runs stay, also of those that are resumed meanwhile."
    return template.format(f"about {byte_size(total)}", lines, checked)


def _age(disk: Document) -> Markup:
    """When the figures were measured, and a button to measure again; the progress of the first measurement."""
    if disk["measured_at"] is None:
        return _measuring(disk["measuring"])
    again = """<button type="button" class="button small" data-send='{"measure":true}'>Measure again</button>"""
    running = Markup('<span class="muted">measuring</span>') if disk["measuring"] else Markup(again)  # noqa: S704 ours
    return Markup('<span class="muted">measured {}</span> {}').format(ago(disk["measured_at"]), running)


def _problem(disk: Document) -> Markup:
    if not disk["problem"]:
        return Markup("")
    return Markup('<div class="alert" role="alert"><b>Could not measure the disk use.</b> {}</div>').format(
        disk["problem"]
    )


def _measuring(progress: Document | None) -> Markup:
    """The progress of the first measurement; later ones replace the figures when they are done."""
    if progress is None:
        return Markup("")
    text = f"measuring: {progress['done']:,} of {numbers.plural(progress['total'], 'run')}"
    share = progress["done"] / progress["total"] if progress["total"] else None
    return Markup('<span class="muted">{}</span> {}').format(text, bar(share, label="measuring"))


def _kinds(kinds: dict[str, Document] | None) -> Markup:
    """A row for each kind; without figures before the first measurement."""
    largest = max((size["bytes"] for size in kinds.values()), default=0) if kinds else 0
    rows = []
    for kind, (label, note) in KINDS.items():
        size = kinds.get(kind) if kinds else None
        drawn = bar(size["bytes"] / largest, label=f"{label} in comparison") if size and largest else ""
        named = Markup('<span title="{}">{}</span>').format(note, label) if note else label
        rows.append((named, drawn, byte_size(size["bytes"]) if size else NONE, _files(size)))
    whole = {key: sum(size[key] for size in kinds.values()) for key in ("bytes", "files")} if kinds else None
    rows.append(("Together", "", byte_size(whole["bytes"]) if whole else NONE, _files(whole)))
    return plain_table("figures", ["Kind", "", "Size", "Files"], rows)


def _largest(disk: Document) -> Markup:
    if disk["kinds"] is None:
        return Markup('<p class="note">Measuring.</p>')
    if not disk["largest_runs"]:
        return Markup('<p class="note">No run has files yet.</p>')
    rows = [
        (
            run_link(run["id"], run["name"]),
            status_word(Status(run["status"])) if run["status"] else "not in the database",
            byte_size(run["bytes"]),
            byte_size(run["checkpoint_bytes"]),
        )
        for run in disk["largest_runs"]
    ]
    cells = '<td class="name">{}</td><td class="rows">{}</td><td>{}</td><td>{}</td>'
    return table("figures largest", ["Run", "Status", "Size", "Checkpoints"], each(f"<tr>{cells}</tr>", rows))


def _freeable(disk: Document, *, admin: bool) -> Markup:
    """What can be freed: harmless kinds first, with one button for all, then those that something may need."""
    found = disk["freeable"]
    if not found:
        return Markup('<p class="note">Measuring.</p>')
    busy = disk["freeing"] is not None and disk["freeing"]["ended_at"] is None
    allowed = [one for one in found if admin or Freeable(one["kind"]).of_runs]
    harmless = [one for one in allowed if one["harmless"]]
    several = [one["kind"] for one in harmless if one["bytes"]]
    every = send_button("Free all of these", {"free": several}, enabled=not busy) if len(several) > 1 else Markup("")
    others = _offers([one for one in allowed if not one["harmless"]], busy)
    lists = '<div><h3>{}</h3><ul class="offers">{}</ul>{}</div>'
    groups = [("Not needed any more", _offers(harmless, busy), every), ("Possibly needed", others, "")]
    return Markup('<div class="groups">{}</div>').format(each(lists, groups))


def _offers(found: Sequence[Document], busy: bool) -> Markup:
    items = []
    for one in found:
        label, lost = FREEABLE[Freeable(one["kind"])]
        button = (
            send_button("Free", {"free": [one["kind"]]}, f"Free {label}", enabled=not busy)
            if one["bytes"] or one["files"]
            else Markup("")
        )
        items.append((label, _size(one) if one["files"] else "none", lost, button))
    return each("<li><div><b>{}</b>: {}<p>{}</p></div>{}</li>", items)


def _freeing(work: Document | None) -> Markup:
    """The progress or the outcome of the latest work of freeing."""
    if work is None:
        return Markup("")
    freed = f"{byte_size(work['bytes'])} in {numbers.plural(work['files'], 'file')}"
    if work["ended_at"] is None:
        share = work["done"] / work["total"] if work["total"] else None
        text = f"Freeing: {work['done']:,} of {work['total']:,}, {freed} so far."
        return Markup('<p class="note" role="status">{}</p>{}').format(
            text, bar(share, label="freeing", classes="wide")
        )
    outcome = Markup('<p class="banner" role="status">Freed {}, {}.</p>').format(freed, ago(work["ended_at"]))
    problems = each("<li>{}</li>", [(problem,) for problem in work["problems"]])
    failed = Markup('<div class="alert" role="alert"><b>Some files could not be deleted.</b><ul>{}</ul></div>')
    return outcome + (failed.format(problems) if work["problems"] else Markup(""))


def _retention(rules: Document) -> Markup:
    lines = list(retention(rules))
    deleted = rules["would_delete"]
    if deleted is not None:
        runs = numbers.plural(deleted["runs"], "run")
        lines.append(("The rules would delete now", f"{byte_size(deleted['bytes'])} of {runs}"))
    note = "Set them in the environment of the workers, which apply them once an hour."
    return facts(lines) + note_html(note)


def _size(size: Document) -> str:
    return f"{byte_size(size['bytes'])} in {_files(size)}"


def _files(size: Document | None) -> str:
    return NONE if size is None else numbers.plural(size["files"], "file")
