"""The addresses of the pages, used by the header, the security and the pages."""

from dataclasses import dataclass

from app.texts import gettext_noop as _


@dataclass(frozen=True)
class Address:
    """A page: its path and its name; `in_header` if the header links to it, `is_read` if it is a template, without Gradio.

    The header marks the page `parent` while one opens below it.
    """

    path: str
    name: str
    in_header: bool = True
    is_read: bool = False
    parent: str = ""


PAGES = (
    Address("/", _("Runs"), is_read=True),
    Address("/datasets", _("Data sets"), is_read=True),
    Address("/new", _("New run")),
    Address("/sweeps", _("Sweeps"), is_read=True),
    Address("/playground", _("Playground"), is_read=True),
    Address("/diagnose", _("Diagnose"), is_read=True),
    Address("/system", _("System"), is_read=True),
    Address("/settings", _("Settings"), is_read=True),
    Address("/start", _("Tour"), in_header=False, is_read=True),
    Address("/import", _("Import a configuration"), in_header=False, parent="/new"),
    Address("/run", _("Run"), in_header=False, is_read=True, parent="/"),  # of one run: /run?id=RUN_ID
    Address("/sweep", _("Sweep"), in_header=False, is_read=True, parent="/sweeps"),  # of one sweep: /sweep?id=SWEEP_ID
    Address("/new-sweep", _("New sweep"), in_header=False, parent="/sweeps"),
    Address("/new-dataset", _("Add data"), in_header=False, parent="/datasets"),
    Address(
        "/compare", _("Compare"), in_header=False, is_read=True, parent="/"
    ),  # of several runs: /compare?runs=ID,ID
    Address(
        "/dataset", _("Data set"), in_header=False, is_read=True, parent="/datasets"
    ),  # of one data set: /dataset?id=ID
)
