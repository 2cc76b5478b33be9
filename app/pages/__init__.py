"""The pages: a file each, put together here. To add one: write its `build(demo)`, name it below and in app/addresses.py."""

from collections.abc import Callable

import gradio as gr
from gradio.components import Navbar

from app.addresses import PAGES
from app.pages import dataset, datasets, diagnose, launch, run, runs

BUILDERS: dict[str, Callable[[gr.Blocks], None]] = {
    "/": runs.build,
    "/datasets": datasets.build,
    "/new": launch.build,
    "/diagnose": diagnose.build,
    "/run": run.build,
    "/dataset": dataset.build,
}

_UPLOADS_LOOKED_AT, _UPLOADS_KEPT = 600, 3600  # seconds: an upload that nobody took in is deleted within an hour


def build() -> gr.Blocks:
    """All pages, each at its own address."""
    demo = gr.Blocks(
        title="Lathe", fill_width=True, analytics_enabled=False, delete_cache=(_UPLOADS_LOOKED_AT, _UPLOADS_KEPT)
    )
    for page in PAGES:
        with demo if page.path == "/" else demo.route(page.name, page.path):
            Navbar(visible=False)  # ours is in the frame (app/theme.py)
            BUILDERS[page.path](demo)
    return demo
