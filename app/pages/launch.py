"""The page New run, at /new: data, settings, previews, Start. /new?clone=RUN_ID begins as that run, /new?data=ID with that set.

The form is kept in the browser as a draft, so that a refresh or a crash loses nothing. It holds no secrets: RunConfig has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component
from markupsafe import Markup

from app import callers, form
from app.form import Draft
from app.pages import data, memory_panel, method_panel
from app.pages.memory_panel import MemoryPanel
from app.pages.method_panel import MethodPanel
from app.pages.parts import QUIET, database_away, html, title
from app.pages.review import NO_ZERO, problems_html, processes_here, review, summary_html
from training.config import Group, Strategy
from training.config_file import read_config
from training.failure import DataError
from training.fields import ConfigError, Problem, Setting, settings
from worker import database, runs, submit
from worker.patience import UNREACHABLE
from worker.runs import RunNotFound
from worker.settings import ROOT

STARTER = ROOT / "static" / "starter"
EXAMPLE = STARTER / "quickstart.yaml"
HUB_SUGGESTION = "Qwen/Qwen3-0.6B"
_NAMES = tuple(settings())
_HIDEABLE = tuple(name for name in _NAMES if name in form.APPLIES)
_GO = "(address) => { if (address) window.location.assign(address) }"
_FORGET_GIVEN = """() => {
  const clone = new URLSearchParams(location.search).get('clone');
  window.history.replaceState(null, '', clone ? `/new?clone=${encodeURIComponent(clone)}` : '/new');
}"""
_FORGET_CLONE = "() => window.history.replaceState(null, '', '/new')"


@dataclass(frozen=True)
class Page:
    """The components that handlers read and write."""

    fields: dict[str, Any]  # Gradio's components get their events (change, input) while running, unseen by a type checker
    upload: gr.File
    method: MethodPanel
    found: gr.HTML
    banner: gr.HTML
    summary: gr.HTML
    problems: gr.HTML
    start: gr.Button
    memory: MemoryPanel
    previews: list[gr.Code]

    @property
    def inputs(self) -> list[Any]:
        """The settings' components, in the order of their names."""
        return [self.fields[name] for name in _NAMES]

    @property
    def hideable(self) -> list[Any]:
        return [self.fields[name] for name in _HIDEABLE]


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    draft = gr.BrowserState(None, storage_key="lathe-draft", secret="lathe")  # noqa: S106 no secret: it must only stay the same
    parent, shown = gr.State(""), gr.State(())
    address = gr.Textbox(visible=False)
    with gr.Row(elem_classes="title-row"):
        title("New run")
        example = gr.Button("Fill in the starter example", size="sm", visible=EXAMPLE.is_file(), scale=0)
        reset = gr.Button("Reset", size="sm", scale=0)
    page = _components()

    checked = [draft, shown, page.summary, page.problems, page.start, *page.previews, *page.hideable]
    given = [*page.inputs, parent, shown]
    filled = [*page.inputs, parent, page.banner]
    filled_once = demo.load(opened, draft, [*filled, page.found], **QUIET).then(refreshed, given, checked, **QUIET)
    filled_once.then(None, None, None, js=_FORGET_GIVEN)
    gr.on([one.change for one in page.inputs], refreshed, given, checked, trigger_mode="always_last", **QUIET)
    chosen, held_out, strategy, processes = (page.fields[name] for name in ("data", "validation_data", "strategy", "num_processes"))
    about = [page.fields[name] for name in ("data", "model", "max_length", "columns")]
    gr.on([one.change for one in about], described, about, page.found, trigger_mode="always_last", **QUIET)
    method_panel.wire(page.method, page.fields["method"], page.inputs, _NAMES)
    memory_panel.wire(page.memory, page.inputs, _NAMES)
    strategy.input(spread, [strategy, processes], processes, **QUIET)
    page.upload.upload(uploaded, page.upload, [page.upload, chosen, held_out, page.found], **QUIET)
    page.problems.select(mended, None, page.inputs, **QUIET)
    page.memory.answer.select(mended, None, page.inputs, **QUIET)
    example.click(filled_in, None, filled, **QUIET)
    reset.click(emptied, None, filled, **QUIET).then(None, None, None, js=_FORGET_CLONE)
    begun = page.start.click(begin, [*page.inputs, parent], [address, page.problems, page.start], **QUIET)
    begun.then(None, address, None, js=_GO)


def opened(stored: Any, request: gr.Request) -> list[Any]:
    """The form as it was left, or as the run to clone has it."""
    draft, banner = _asked_for(Draft.of(stored), str(request.query_params.get("clone", "")))
    draft = _with_given(draft, request.query_params)
    picks = data.choices()
    found = described(*(draft.values[name] for name in ("data", "model", "max_length", "columns")))
    return [*_filled(draft, picks), draft.parent, banner, found]


def refreshed(*given: Any) -> list[Any]:
    """What the settings come to: the draft to keep, problems, previews, and which settings are shown."""
    *typed, parent, shown = given
    values = dict(zip(_NAMES, typed, strict=True))
    found = review(values)
    visible = tuple(form.visible(values).values())
    previews = [gr.skip() if one is None else one for one in (found.command, found.deepspeed, found.yaml)]
    hide = [gr.skip() if visible == tuple(shown) else gr.update(visible=one) for one in visible]
    kept = {"values": values, "parent": parent}
    return [kept, visible, summary_html(found), problems_html(found), gr.update(interactive=found.ready), *previews, *hide]


def described(chosen: Any, model: Any, max_length: Any, columns: Any) -> str:
    """What is known of the data set that was picked, and what the model and the maximum length make of it."""
    given = [str(value or "").strip() for value in (chosen, model, max_length, columns)]
    if given[1] and callers.current().reach.model(given[1]):
        given[1] = ""  # not looked at; the settings' problems say why
    return data.describe(*given)


def spread(strategy: str, processes: str) -> Any:
    """Several processes where a strategy for several was chosen and there is one yet: else it could not start."""
    if strategy == Strategy.SINGLE or str(processes).strip() != "1":
        return gr.skip()
    return str(processes_here())


def uploaded(path: str | None) -> list[Any]:
    """Takes the file in as a data set and picks it; a file that cannot be used is explained in its place."""
    if path is None:
        return [gr.skip()] * 4
    taken, found = data.take_in(Path(path))
    picks = data.choices()
    picked = gr.update(choices=picks, value=taken) if taken else gr.skip()
    return [None, picked, gr.update(choices=picks), found]


def mended(event: gr.EventData) -> list[Any]:
    """A conflict's fix, at one click."""
    changes = event._data.get("changes", {}) if isinstance(event._data, dict) else {}
    known = {name: form.shown(settings()[name], value) for name, value in changes.items() if name in settings()}
    return [known.get(name, gr.skip()) for name in _NAMES]


def filled_in() -> list[Any]:
    """The starter example: a run that trains in a minute or two on any machine."""
    config = read_config(EXAMPLE)
    values = form.from_config(config.model_dump(mode="json"))
    paths = {name: _absolute(values[name]) for name in ("model", "data", "validation_data")}
    return [*_filled(Draft(values | paths), data.choices()), "", ""]


def emptied() -> list[Any]:
    """The form with every setting at its default."""
    return [*_filled(Draft(form.defaults()), data.choices()), "", ""]


def begin(*given: Any) -> list[Any]:
    """Queues the run and says where its page is; what is wrong is said beside Start, and nothing is queued."""
    *typed, parent = given
    found = review(dict(zip(_NAMES, typed, strict=True)))
    if found.config is None or not found.ready:
        return ["", problems_html(found), gr.update(interactive=False)]
    try:
        config = data.with_samples_stored(found.config)
        caller = callers.current()
        run = submit.submit(config, parent_id=parent or None, reach=caller.reach, owner=caller.name)
    except ConfigError as error:
        return ["", problems_html(found, error.problems), gr.skip()]
    except DataError as error:
        return ["", problems_html(found, [Problem("data", error.file, error.message, error.fix)]), gr.skip()]
    except UNREACHABLE:
        return ["", database_away(), gr.skip()]
    return [f"/run?id={run.id}", gr.skip(), gr.update(interactive=False)]


def _with_given(draft: Draft, query: Mapping[str, str]) -> Draft:
    """The draft with the settings that the address gives, as data sets and diagnoses do: /new?data=ID&model=..."""
    return replace(draft, values=draft.values | form.given(query))


def _asked_for(draft: Draft, clone: str) -> tuple[Draft, Markup | str]:
    """The draft, unless another run is to be cloned than the one that the draft came from."""
    if not clone:
        return Draft(draft.values), ""
    try:
        with database.read() as session:
            run = runs.get(session=session, run_id=clone)
    except UNREACHABLE:
        return draft, database_away()
    except RunNotFound as error:
        return draft, Markup('<div class="alert" role="alert"><b>Nothing was cloned.</b> {}</div>').format(str(error))
    banner = Markup('<div class="banner">A clone of <a href="/run?id={}">{}</a>: change what you like, then start it.</div>')
    banner = banner.format(run.id, run.name)
    return (draft if draft.parent == run.id else Draft(form.from_config(run.config), run.id)), banner


def _filled(draft: Draft, picks: list[tuple[str, str]]) -> list[Any]:
    """The draft as updates of the settings' components; data sets that were added since can be picked too."""
    with_picks = {"data", "validation_data"}
    return [gr.update(value=draft.values[name], choices=picks) if name in with_picks else draft.values[name] for name in _NAMES]


def _absolute(path: str) -> str:
    return str(ROOT / path) if path and (ROOT / path).exists() else path


def _components() -> Page:
    with gr.Row(elem_classes="two-columns"):
        with gr.Column(scale=3, elem_classes="form"):
            banner = html()
            fields, upload, method, found = _form()
        with gr.Column(scale=2, elem_classes="beside"):
            with gr.Column(elem_classes="card start-card"):
                summary = html()
                problems = html(script="lathe.problems(element, trigger, watch)")
                start = gr.Button("Start", variant="primary", interactive=False, size="lg", elem_id="start")
            memory = memory_panel.build()
            previews = _previews()
    return Page(fields, upload, method, found, banner, summary, problems, start, memory, previews)


def _form() -> tuple[dict[str, Component], gr.File, MethodPanel, gr.HTML]:
    choosers = {"model": _model_chooser, "data": _data_chooser, "validation_data": _data_chooser}
    fields: dict[str, Component] = {}
    for group in Group:
        with gr.Column(elem_classes="card"):
            html(Markup("<header><h2>{}</h2></header>").format(group.value))
            fields |= form.build_group(group, choosers)
            if group is Group.MODEL:
                upload = data.upload_box()
                found = html(classes="found-place")
            if group is Group.METHOD:
                panel = method_panel.build()
    return fields, upload, panel, found


def _previews() -> list[gr.Code]:
    look: dict[str, Any] = {"interactive": False, "show_label": False, "wrap_lines": True, "show_line_numbers": False, "lines": 8}
    with gr.Tabs(elem_classes="card previews"):
        with gr.Tab("Command"):
            command = gr.Code(language="shell", buttons=["copy"], elem_id="command", **look)
        with gr.Tab("DeepSpeed or FSDP"):
            deepspeed = gr.Code(NO_ZERO, language="json", buttons=["copy"], elem_id="deepspeed", **look)
        with gr.Tab("YAML"):
            yaml = gr.Code(language="yaml", buttons=["copy"], elem_id="yaml", **look)
    return [command, deepspeed, yaml]


def _model_chooser(setting: Setting) -> Component:
    starter = [("Starter model (static/starter)", str(STARTER))] if (STARTER / "config.json").is_file() else []
    return gr.Dropdown([*starter, HUB_SUGGESTION], value="", allow_custom_value=True, **form.look(setting))


def _data_chooser(setting: Setting) -> Component:
    return gr.Dropdown([], value="", allow_custom_value=True, **form.look(setting))  # filled when the page is opened
