"""The page Import a configuration, at /import: another program's file, pasted or uploaded, as the settings of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import gradio as gr
from markupsafe import Markup

from app.format.setting_text import in_words, listed
from app.pages.common import form
from app.pages.common.html import UNQUEUED, html, title
from app.pages.common.upload_box import deleted_afterwards, uploads_only
from app.texts import _, gettext_noop
from app.web.gradio_texts import made
from app.web.templating import PARTS, Macros, filled
from training.config.fields import settings
from training.config.yaml_file import to_yaml
from training.errors import UserError
from training.foreign.entries import Entry, Outcome, names
from training.foreign.translate import Imported
from worker.runs import translation

_EXAMPLE = """\
stage: sft
finetuning_type: lora
model_name_or_path: Qwen/Qwen3-0.6B
cutoff_len: 2048
per_device_train_batch_size: 2"""
_HTML = Macros("import.html")
_LONGEST_VALUE = 120
_NOTES = {
    Outcome.UNSUPPORTED: gettext_noop("Lathe does not apply these keys. The note says what to do instead."),
    Outcome.TRANSLATED: gettext_noop("The setting has another name in Lathe, or becomes several."),
    Outcome.TAKEN: gettext_noop("The same value."),
    Outcome.NO_EFFECT: gettext_noop("Lathe needs no such setting, or it is off."),
}


def build(demo: gr.Blocks) -> None:  # noqa: ARG001 every page takes it
    """Components, handlers and wiring of the page."""
    title("Import a configuration", Markup('<a class="button" href="/new">New run</a>'))
    with gr.Row(elem_classes="two-columns"):
        with gr.Column(scale=2, elem_classes="card"):
            with gr.Row(elem_classes="settings"):
                text = gr.Textbox(
                    label="Configuration",
                    lines=14,
                    max_lines=14,
                    placeholder=_EXAMPLE,
                    elem_id="configuration",
                    elem_classes=["setting", "buttons", "paste"],
                )
            upload = uploads_only(
                gr.File(
                    label="Or upload the files",
                    height=64,
                    file_count="multiple",
                    elem_classes="upload",
                    elem_id="configuration-files",
                )
            )
            ask = gr.Button("Import", variant="primary", elem_id="import")
        with gr.Column(scale=3):
            result = html(made(_HTML.empty))
    ask.click(pasted, text, result, **UNQUEUED)
    upload.upload(dropped, upload, [upload, result], **UNQUEUED)


def pasted(text: str | None) -> Markup:
    """The translation of a pasted file, or what is wrong with it."""
    return _answer([(_("the pasted text"), text)]) if text and text.strip() else _HTML.empty()


def dropped(files: list[str] | None) -> list[Any]:
    """The translation of uploaded files, which are then deleted."""
    if not files:
        return [gr.skip(), gr.skip()]
    with deleted_afterwards(files) as paths:
        return [None, _answer([(path.name, _read(path)) for path in paths])]


def _read(path: Path) -> str:
    with path.open("rb") as file:
        return file.read(translation.LONGEST + 1).decode("utf-8", "replace")


def _answer(texts: Sequence[tuple[str, str]]) -> Markup:
    try:
        return _imported(translation.translated(texts))
    except UserError as error:
        return PARTS.refusals(error.problems)


def _imported(imported: Imported) -> Markup:
    return filled(
        "import.html",
        imported=imported,
        missing=listed(imported.missing),
        address=f"/new?{_query(imported)}",
        yaml=to_yaml(imported.config()),
        notes=_NOTES,
        short=_short,
        here=_here,
    )


def _short(value: Any) -> str:
    """The value as it was written, shortened."""
    if value is None:
        return ""
    text = names(value) if isinstance(value, list) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= _LONGEST_VALUE else text[:_LONGEST_VALUE] + "…"


def _here(one: Entry) -> str:
    return ", ".join(
        in_words(name, value) if name in settings() else f"{name} {value}" for name, value in one.settings.items()
    )


def _query(imported: Imported) -> str:
    """The settings as the query of New run's address."""
    chosen = imported.config().model_dump(mode="json", exclude_defaults=True)
    return urlencode(
        {name: form.shown(settings()[name], value) for name, value in chosen.items() if name not in imported.missing}
    )
