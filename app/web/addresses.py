"""The addresses of the pages, used by the header, the security and the pages."""

from dataclasses import dataclass

from app.texts import gettext_noop as _
from training.parts import is_here


@dataclass(frozen=True)
class Address:
    """A page: its path, its name, and the module in app/pages that has its `view`, or its `build(demo)` if it is one of Gradio.

    The header links to it if `in_header`, and marks the page `parent` while one opens below it. A page that `is_read` is a
    template, without Gradio.
    """

    path: str
    name: str
    module: str
    in_header: bool = True
    is_read: bool = False
    parent: str = ""


_ALL = (
    Address("/", _("Runs"), "runs.page", is_read=True),
    Address("/datasets", _("Data sets"), "datasets", is_read=True),
    Address("/new", _("New run"), "new_run.page"),
    Address("/sweeps", _("Sweeps"), "sweeps", is_read=True),
    Address("/playground", _("Playground"), "playground", is_read=True),
    Address("/diagnose", _("Diagnose"), "diagnose", is_read=True),
    Address("/system", _("System"), "system", is_read=True),
    Address("/settings", _("Settings"), "settings", is_read=True),
    Address("/start", _("Tour"), "tour", in_header=False, is_read=True),
    Address("/import", _("Import a configuration"), "import_file", in_header=False, parent="/new"),
    # of one: /run?id=RUN_ID, /sweep?id=SWEEP_ID, /dataset?id=ID; of several runs: /compare?runs=ID,ID
    Address("/run", _("Run"), "run.page", in_header=False, is_read=True, parent="/"),
    Address("/sweep", _("Sweep"), "sweep", in_header=False, is_read=True, parent="/sweeps"),
    Address("/new-sweep", _("New sweep"), "new_sweep.page", in_header=False, parent="/sweeps"),
    Address("/new-dataset", _("Add data"), "new_dataset", in_header=False, parent="/datasets"),
    Address("/compare", _("Compare"), "compare", in_header=False, is_read=True, parent="/"),
    Address("/dataset", _("Data set"), "dataset.page", in_header=False, is_read=True, parent="/datasets"),
)

PAGES = tuple(page for page in _ALL if is_here(f"app.pages.{page.module}"))


def is_page(path: str) -> bool:
    """True if this installation has a page there."""
    return any(page.path == path for page in PAGES)
