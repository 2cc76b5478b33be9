"""The pages. One that is filled in has a `build(demo)`, one that is read a `view`; each is below and in app/web/addresses.py."""

from collections.abc import Callable

import gradio as gr
from gradio.components import Navbar
from gradio.events import Dependency

from app.pages import (
    compare,
    datasets,
    diagnose,
    import_file,
    new_dataset,
    playground,
    settings,
    sweep,
    sweeps,
    system,
    tour,
)
from app.pages.dataset import page as dataset
from app.pages.new_run import page as launch
from app.pages.new_sweep import page as new_sweep
from app.pages.run import page as run
from app.pages.runs import page as runs
from app.web.addresses import PAGES

BUILDERS: dict[str, Callable[[gr.Blocks], None]] = {
    "/new": launch.build,
    "/import": import_file.build,
    "/new-sweep": new_sweep.build,
    "/new-dataset": new_dataset.build,
}

VIEWS = (
    compare.view,
    dataset.view,
    datasets.view,
    diagnose.view,
    playground.view,
    run.view,
    runs.view,
    settings.view,
    sweep.view,
    sweeps.view,
    system.view,
    tour.view,
)

POSTED = diagnose.posted
"""The routes to which forms of these pages are posted."""

_CLEANUP_SECONDS, _UPLOAD_SECONDS = 600, 3600  # Gradio deletes an upload that was not imported after an hour


def build() -> gr.Blocks:
    """The application with all pages, each at its own address."""
    demo = gr.Blocks(
        title="Lathe", fill_width=True, analytics_enabled=False, delete_cache=(_CLEANUP_SECONDS, _UPLOAD_SECONDS)
    )
    for page in (page for page in PAGES if not page.is_read):
        with demo.route(page.name, page.path):  # its root stays empty: the page Runs is read
            Navbar(visible=False)  # our own is in the frame (app/web/theme.py)
            before = set(demo.fns)
            BUILDERS[page.path](demo)
            _tell_when_live(demo, set(demo.fns) - before)
    return demo


def _tell_when_live(demo: gr.Blocks, own: set[int]) -> None:
    """Calls `lathe.live` in the browser after each handler that fills the page when it opens, and `lathe.failed` if it failed.

    After the last of them the skeleton of the page (app/web/theme.py) gives way to it.
    """
    filling: list[int] = []
    for number in sorted(own):
        handler = demo.fns[number]
        opens = any(event == "load" for _, event in handler.targets) or handler.trigger_after in filling
        if opens and handler.fn is not None:
            filling.append(number)
    for number in filling:
        filled = Dependency(demo, {}, number, None)
        filled.then(None, None, None, js=f"() => lathe.live({len(filling)})")
        filled.failure(None, None, None, js="() => lathe.failed()")
    if not filling:
        demo.load(None, None, None, js="() => lathe.live(1)")
