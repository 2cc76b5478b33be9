"""The pages. Each is a row of app/web/addresses.py; one that is filled in has a `build(demo)`, one that is read a `view`."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import gradio as gr
from fastapi import APIRouter
from gradio.components import Navbar
from gradio.events import Dependency

from app.pages.common.view import View
from app.web.addresses import PAGES, Address


def _module(page: Address) -> Any:
    return import_module(f"app.pages.{page.module}")


VIEWS: tuple[View, ...] = tuple(_module(page).view for page in PAGES if page.is_read)


def routers() -> Iterator[APIRouter]:
    """The routes of the pages that are read, and those to which forms on them are posted."""
    for page in PAGES:
        if page.is_read:
            module = _module(page)
            yield module.view.router()
            if hasattr(module, "posted"):
                yield module.posted


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
            _module(page).build(demo)
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
