"""The addresses of the pages, used by the header, the security and the pages."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Address:
    """A page: its path and its name; `in_header` if the header links to it, `is_read` if it is a template, without Gradio."""

    path: str
    name: str
    in_header: bool = True
    is_read: bool = False


PAGES = (
    Address("/", "Runs", is_read=True),
    Address("/datasets", "Data sets", is_read=True),
    Address("/new", "New run"),
    Address("/sweeps", "Sweeps", is_read=True),
    Address("/playground", "Playground", is_read=True),
    Address("/diagnose", "Diagnose", is_read=True),
    Address("/system", "System", is_read=True),
    Address("/settings", "Settings", is_read=True),
    Address("/start", "Tour", in_header=False, is_read=True),
    Address("/import", "Import a configuration", in_header=False),
    Address("/run", "Run", in_header=False, is_read=True),  # of one run: /run?id=RUN_ID
    Address("/sweep", "Sweep", in_header=False, is_read=True),  # of one sweep: /sweep?id=SWEEP_ID
    Address("/new-sweep", "New sweep", in_header=False),
    Address("/new-dataset", "Add data", in_header=False),
    Address("/compare", "Compare", in_header=False, is_read=True),  # of several runs: /compare?runs=ID,ID
    Address("/dataset", "Data set", in_header=False, is_read=True),  # of one data set: /dataset?id=ID
)
