"""The upload box, and the paths that its handlers get."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import gradio as gr

from app.access import uploads
from app.texts import _
from app.web.gradio_texts import made
from training.data.files.formats import FORMATS

FILE_TYPES = [f".{name}" for name in (*FORMATS, "gz", "zip")]


def upload_box(*, several: bool = False) -> gr.File:
    """The upload box. Its handlers get the path of the file, with `several` a list of paths."""
    label = made(lambda: _("Upload a data set: {endings}").format(endings=", ".join(FILE_TYPES)))
    many: Any = "multiple" if several else "single"
    box = gr.File(
        label=label, file_count=many, file_types=FILE_TYPES, height=64, elem_classes="upload", elem_id="upload"
    )
    return uploads_only(box)


def uploads_only(box: gr.File) -> gr.File:
    """The component, changed so that its handlers get paths of uploads and no other paths.

    Gradio's own `preprocess` leaves an empty file behind on each call.
    """
    folder = uploads.folder()

    def paths_of(payload: Any) -> str | list[str] | None:
        if payload is None:
            return None
        listed = payload.root if hasattr(payload, "root") else [payload]
        paths = [str(uploads.uploaded_file(str(file.path), folder)) for file in listed]
        return paths if box.file_count == "multiple" else paths[0]

    # On the instance, because Gradio writes a stub file into this folder for a subclass.
    box.preprocess = paths_of  # type: ignore[method-assign]
    return box


@contextmanager
def deleted_afterwards(files: Sequence[str]) -> Iterator[list[Path]]:
    """The paths of uploaded files, which are deleted at the end."""
    paths = [Path(upload) for upload in files]
    try:
        yield paths
    finally:
        for path in paths:
            path.unlink(missing_ok=True)
            with suppress(OSError):
                path.parent.rmdir()
