"""The page Add data, at /new-dataset: three ways to import data sets. The page Data sets shows how the imports go on."""

from pathlib import Path
from typing import Any

import gradio as gr

from app.access import dataset_imports
from app.access.dataset_imports import ONE_SET, WAYS
from app.pages.common import upload_box
from app.pages.common.html import UNQUEUED, html, title
from app.web.templating import PARTS

_SHOW_IMPORTS = "(begun) => { if (begun) window.location.assign('/datasets') }"


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    title("Add data")
    begun = gr.Checkbox(visible=False)
    with gr.Tabs(elem_classes="card sources"):
        upload, way = _upload_tab()
        folder, add = _folder_tab()
        *hub, fetch = _hub_tab()
    demo.load(lambda: gr.update(choices=dataset_imports.folder_choices()), None, folder, **UNQUEUED)
    for started in (
        upload.upload(uploaded, [upload, way], begun, **UNQUEUED),
        add.click(added, folder, begun, **UNQUEUED),
        fetch.click(fetched, hub, begun, **UNQUEUED),
    ):
        started.then(None, begun, None, js=_SHOW_IMPORTS)


def uploaded(files: list[str] | None, way: str) -> bool:
    """Imports the uploaded files, together or separately; true if there are any."""
    if files:
        dataset_imports.from_uploads([Path(file) for file in files], way)
    return bool(files)


def added(names: list[str] | None) -> bool:
    """Imports files from the server's folders; true if any were chosen."""
    for name in names or []:
        dataset_imports.from_folder(name)
    return bool(names)


def fetched(name: str | None, split: str | None, config: str | None, revision: str | None) -> bool:
    """Downloads a data set from the hub and imports it; true if one was named. A field that is not mounted is None."""
    chosen, *options = ((text or "").strip() for text in (name, split, config, revision))
    if chosen:
        dataset_imports.from_hub(chosen, *options)
    return bool(chosen)


def _upload_tab() -> tuple[Any, Any]:
    with gr.Tab("Upload"):
        upload = upload_box.upload_box(several=True)
        way = gr.Radio(
            WAYS, value=ONE_SET, label="Import multiple files as", elem_classes="segmented ways", elem_id="way"
        )
    return upload, way


def _folder_tab() -> tuple[Any, Any]:
    with gr.Tab("From this server"):
        reason = dataset_imports.folder_reason()
        html(PARTS.note(reason), visible=bool(reason))
        with gr.Row(visible=not reason):
            folder = gr.Dropdown(
                [], multiselect=True, label="Files in the server's data folders", elem_id="folder", scale=4
            )
            add = gr.Button("Add", variant="primary", size="md", scale=0, elem_id="add-folder")
    return folder, add


def _hub_tab() -> list[Any]:
    with gr.Tab("From the hub"):
        reason = dataset_imports.hub_reason()
        html(PARTS.note(reason), visible=bool(reason))
        with gr.Row(visible=not reason):
            name = gr.Textbox(label="Data set", placeholder="owner/name", elem_id="hub-name", scale=3)
            split = gr.Textbox("train", label="Split", scale=1)
            config = gr.Textbox(label="Configuration", placeholder="default", scale=1)
            revision = gr.Textbox(label="Revision", placeholder="main", scale=1)
            fetch = gr.Button("Fetch", variant="primary", size="md", scale=0, elem_id="fetch-hub")
    return [name, split, config, revision, fetch]
