"""The page New run, at /new: data, settings, previews, Start. /new?clone=RUN_ID clones a run, /new?data=ID picks a data set.

The browser stores the form as a draft, so a refresh or a crash loses nothing. It contains no secrets: RunConfig has none.
"""

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components import Component
from markupsafe import Markup

from app.access import callers
from app.pages.common import form, upload_box
from app.pages.common.form import Draft
from app.pages.common.html import GO, HTML, UNQUEUED, database_unreachable, html
from app.pages.new_run import (
    data_chooser,
    data_mix,
    folds,
    memory_panel,
    method_panel,
    models,
    rewards_panel,
    rows_panel,
)
from app.pages.new_run.first_form import first_form
from app.pages.new_run.memory_panel import MemoryPanel
from app.pages.new_run.method_panel import MethodPanel
from app.pages.new_run.opening import draft_or_clone, fresh, from_link, kept_or_fresh, restored
from app.pages.new_run.review import previews_of, processes_here, review, summary_html
from app.pages.new_run.rewards_panel import RewardsPanel
from app.pages.new_run.rows_panel import RowsPanel
from app.pages.new_run.steps import last_head, opening_html, steps_html
from app.web import theme
from app.web.gradio_texts import made
from training.config.applies import APPLIES, Values
from training.config.choices import Group, Strategy
from training.config.data_sets import FIELDS, entries
from training.config.fields import ConfigError, Setting, settings
from training.config.yaml_file import read_config
from training.errors import DataError, Problem
from worker.allowed_paths import STARTER
from worker.runs import submit
from worker.settings import ROOT
from worker.store.database import UNREACHABLE
from worker.store.runs import LONGEST_ID

theme.FIRST["/new"] = first_form
EXAMPLE = STARTER / "quickstart.yaml"
_NAMES = tuple(settings())
_ABOUT_DATA = ("data", "model", "max_length", "columns", "validation_data", "task", "train_on_prompt")
TOKENIZING_SECONDS = 2.0
_HIDEABLE = tuple(name for name in _NAMES if name in APPLIES)
_KEEP_ONLY_CLONE = """() => {
  const clone = new URLSearchParams(location.search).get('clone');
  window.history.replaceState(null, '', clone ? `/new?clone=${encodeURIComponent(clone)}` : '/new');
}"""
_TYPED_IS_KEPT = "() => lathe.typedIsKept()"
_CLEAR_ADDRESS = "() => window.history.replaceState(null, '', '/new')"


@dataclass(frozen=True)
class Page:
    """The components that handlers read and write."""

    fields: dict[str, Any]  # Gradio adds the events (change, input) at run time; a type checker does not know them
    upload: gr.File
    method: MethodPanel
    rewards: RewardsPanel
    dataset: HTML
    on_hub: HTML
    changes: HTML
    banner: HTML
    summary: HTML
    steps: list[HTML]  # as steps_html gives them
    start: gr.Button
    memory: MemoryPanel
    rows: RowsPanel
    previews: list[gr.Code]

    @property
    def inputs(self) -> list[Any]:
        """The settings' components, in the order of their names."""
        return [self.fields[name] for name in _NAMES]

    @property
    def hideable(self) -> list[Any]:
        return [*(self.fields[name] for name in _HIDEABLE), self.rewards.column]


def build(demo: gr.Blocks) -> None:
    """Components, handlers and wiring of the page."""
    draft, earlier = form.kept_in_browser(), form.kept_in_browser("lathe-earlier-draft")
    visible, about = gr.State(()), gr.State("")
    address = gr.Textbox(visible=False)
    with gr.Row(elem_classes="title-row"):
        html(made(folds.title_html))
        example = gr.Button("Load the starter example", size="sm", visible=EXAMPLE.is_file(), scale=0)
        reset = gr.Button("Reset", size="sm", scale=0)
    page = _components()

    about_data = [page.fields[name] for name in _ABOUT_DATA]
    tokenizing = gr.Timer(TOKENIZING_SECONDS, active=False)
    shown = [page.dataset, tokenizing]
    checked = [draft, visible, page.changes, page.summary, *page.steps, page.start, *page.previews, *page.hideable]
    checked += [about, *shown]
    typed = [*page.inputs, draft, visible, about]
    filled = [*page.inputs, draft, page.banner]
    loaded = demo.load(
        opened, [draft, earlier], [*filled, *shown, earlier], js="(...stored) => lathe.withTyped(...stored)", **UNQUEUED
    ).then(refreshed, typed, checked, **UNQUEUED)
    loaded.then(None, None, None, js=_KEEP_ONLY_CLONE)
    loaded.success(None, None, None, js=_TYPED_IS_KEPT)
    # The only handler of these events that waits for its turn: if an event has two, Gradio repeats both without end once two fields
    # change in quick succession, since for a handler that waited it sends the whole event again.
    changes = [field.change for field in page.inputs]
    sent = "(...values) => lathe.sendTyped(...values)"
    changed = gr.on(changes, refreshed, typed, checked, trigger_mode="always_last", js=sent, **UNQUEUED)
    changed.success(None, None, None, js=_TYPED_IS_KEPT)
    data, held_out, strategy, processes = (
        page.fields[name] for name in ("data", "validation_data", "strategy", "num_processes")
    )
    ticked = tokenizing.tick(described, about_data, shown, **UNQUEUED)
    ticked.then(form.by_name(rechecked), page.inputs, page.steps, trigger_mode="always_last", **UNQUEUED)
    memory_panel.refresh_after(ticked, page.memory, page.inputs)
    chosen = [page.fields[name] for name in ("data", "columns", "task")]
    named = [page.fields[name] for name in ("model", "revision")]
    for field in named:
        field.change(models.on_hub, named, page.on_hub, **UNQUEUED)
    page.dataset.select(mixed, chosen, chosen[:2], **UNQUEUED)
    method_panel.wire(page.method, page.fields["method"], page.inputs)
    memory_panel.wire(page.memory, changed, page.inputs)
    strategy.input(propose_processes, [strategy, processes], processes, **UNQUEUED)
    sets = [data, held_out, page.fields["columns"]]
    for field in (data, held_out):  # a sample is tokenized like every other data set before the forecast is read
        field.input(picked, sets, sets, **UNQUEUED)
    page.upload.upload(uploaded, [page.upload, *sets], [page.upload, *sets, page.dataset], **UNQUEUED)
    for step in page.steps:
        step.select(apply_fix, None, page.inputs, **UNQUEUED)
    taken_over = page.changes.select(apply_fix, None, page.inputs, **UNQUEUED)
    taken_over.success(None, None, None, js="() => lathe.typedIsSet()")
    rows_panel.wire(page.rows, page.inputs)
    rewards_panel.wire(page.rewards, page.inputs)
    page.rows.rows.select(apply_fix, None, page.inputs, **UNQUEUED)
    for place in (page.memory.answer, page.memory.most):
        place.select(apply_fix, None, page.inputs, **UNQUEUED)
    example.click(starter_example, None, filled, **UNQUEUED)
    for event in (reset.click, page.banner.select):
        event(cleared, None, filled, **UNQUEUED).then(None, None, None, js=_CLEAR_ADDRESS)
    started = page.start.click(start, [*page.inputs, draft], [address, *page.steps, page.start], **UNQUEUED)
    started.then(None, address, None, js=GO)


def opened(stored: Any, earlier: Any, request: gr.Request) -> list[Any]:
    """The form with the stored draft, the cloned run, or the settings in the address (/new?data=ID&model=...).

    A link shows the same settings to everybody: it starts from the defaults, and the draft is kept as the earlier one.
    """
    query = request.query_params
    given = form.from_query(query)
    draft, banner = draft_or_clone(
        kept_or_fresh(earlier if "earlier" in query else stored), str(query.get("clone", ""))
    )
    draft = replace(draft, values=draft.values | _by_label(draft.values))
    keep = gr.skip()
    if given and not query.get("clone"):
        if draft.values | given != draft.values:
            keep, banner = stored, from_link(given, draft)
        draft = Draft(form.defaults() | given)
    elif given:
        draft = replace(draft, values=draft.values | given)
    elif not banner:
        banner = restored(draft)
    dataset, timer = described(*(draft.values[name] for name in _ABOUT_DATA))
    return [*_filled(draft), draft.stored, banner, dataset, timer, keep]


def refreshed(*inputs: Any) -> list[Any]:
    """The draft to store, problems, previews, which settings are visible, and the data sets if they have changed."""
    *typed, stored, visible_before, about_before = inputs
    values = form.of_components(typed)
    checked = review(values)
    shown = form.visible(values)
    visible = (*shown.values(), shown["rewards"])
    previews = [gr.skip() if text is None else text for text in (checked.command, checked.deepspeed, checked.yaml)]
    unchanged = visible == tuple(visible_before)
    about = [values[name] for name in _ABOUT_DATA]
    known = sha256(json.dumps(about, default=str).encode()).hexdigest()  # the server keeps it, whatever is typed
    return [
        Draft(values, _parent(stored)).stored,
        visible,
        folds.changes_html(values),
        summary_html(checked),
        *steps_html(checked),
        gr.update(interactive=checked.ready),
        *previews,
        *[gr.skip() if unchanged else gr.update(visible=state) for state in visible],
        known,
        *([gr.skip()] * 2 if known == about_before else described(*about)),
    ]


def rechecked(values: Values) -> list[Markup]:
    """The steps with what keeps the run from starting, again: the forecast changes when the tokens of its rows are known."""
    return steps_html(review(values))


def described(*about: Any) -> list[Any]:
    """The chosen data sets, with the rows that the maximum length truncates; the timer runs while they are tokenized."""
    texts = [str(value or "").strip() for value in about]
    if texts[1] and callers.current().allowed.model(texts[1]):
        texts[1] = ""  # the caller may not read this model; the list of problems says why
    description, waits = data_chooser.describe(*texts)
    return [description, gr.Timer(active=waits)]


def mixed(data: Any, columns: Any, task: Any, event: gr.EventData) -> list[Any]:
    """The data with the change made below it: a data set added or removed, a weight, a cap, or the columns of one."""
    change = event._data if isinstance(event._data, dict) else {}
    value, mapping = str(data or ""), str(columns or "")
    if str(change.get("key")).startswith(("role.", "kind", "columns")):
        value, mapping = data_chooser.change_columns(value, mapping, str(task), change)
    else:
        value = data_mix.changed(value, {"add": change.get("value")} if change.get("key") == "add" else change)
    return [gr.update(value=value, choices=data_chooser.choices(value)), mapping]


def propose_processes(strategy: str, processes: str) -> Any:
    """A number of processes, if the strategy needs several and the form has one."""
    if strategy == Strategy.SINGLE or str(processes).strip() != "1":
        return gr.skip()
    return str(processes_here())


def uploaded(path: str | None, data: Any, held_out: Any, columns: Any) -> list[Any]:
    """Stores the file as a data set and picks it, or adds it to several; or shows why the file cannot be used."""
    if path is None:
        return [gr.skip()] * 5
    dataset_id, description = data_chooser.store_upload(Path(path))
    value = str(data or "")
    if dataset_id:
        value = dataset_id if entries(value) is None else data_mix.changed(value, {"add": dataset_id})
    choices = data_chooser.choices(value, str(held_out or ""))
    picked = gr.update(choices=choices, value=value) if dataset_id else gr.skip()
    return [None, picked, gr.update(choices=choices), _columns_of(value, columns), description]


def _columns_of(data: str, columns: Any) -> Any:
    """The column mapping, without one that was that of other data."""
    fitting = data_chooser.fitting_columns(data, str(columns or ""))
    return gr.skip() if fitting == (columns or "") else fitting


def picked(data: Any, held_out: Any, columns: Any) -> list[Any]:
    """The chosen data, of which samples are stored as data sets, and the column mapping if it is theirs."""
    values = [str(data or ""), str(held_out or "")]
    stored = values
    with suppress(*UNREACHABLE, DataError):  # the form stays usable, and Start says what is wrong
        stored = [data_chooser.sample_stored(value) for value in values]
    if stored == values:
        return [gr.skip(), gr.skip(), _columns_of(values[0], columns)]
    choices = data_chooser.choices(*stored)
    return [*(gr.update(choices=choices, value=value) for value in stored), _columns_of(stored[0], columns)]


def apply_fix(event: gr.EventData) -> list[Any]:
    """The form with the changes of the pressed button."""
    asked = event._data.get("changes") if isinstance(event._data, dict) else None
    changes = asked if isinstance(asked, dict) else {}
    known = {name: form.shown(settings()[name], value) for name, value in changes.items() if name in settings()}
    return [known.get(name, gr.skip()) for name in _NAMES]


def starter_example() -> list[Any]:
    """The form with the starter example, which trains in a minute or two on any machine.

    Its rows are stored as data sets, so that they are tokenized like all others before the forecast is read.
    """
    config = read_config(EXAMPLE)
    paths = {name: _absolute(getattr(config, name) or "") or None for name in ("model", "data", "validation_data")}
    config = config.model_copy(update=paths)
    with suppress(*UNREACHABLE, DataError):  # the form stays usable, and Start says what is wrong
        config = data_chooser.with_samples_stored(config)
    draft = Draft(form.from_config(config.model_dump(mode="json")))
    return [*_filled(draft), draft.stored, ""]


def cleared() -> list[Any]:
    """The form with every setting at its default, and the user's default model."""
    draft = fresh()
    return [*_filled(draft), draft.stored, ""]


def start(*inputs: Any) -> list[Any]:
    """Queues the run and opens its page, or shows beside Start what is wrong."""
    *typed, stored = inputs
    checked = review(form.of_components(typed))
    if checked.config is None or not checked.ready:
        return ["", *steps_html(checked), gr.update(interactive=False)]
    try:
        config = data_chooser.with_samples_stored(checked.config)
        caller = callers.current()
        run = submit.submit(config, parent_id=_parent(stored) or None, allowed=caller.allowed, owner=caller.name)
    except ConfigError as error:
        return ["", *steps_html(checked, error.problems), gr.skip()]
    except DataError as error:
        return ["", *steps_html(checked, [Problem("data", error.file, error.message, error.fix)]), gr.skip()]
    except UNREACHABLE:
        return ["", gr.skip(), gr.skip(), database_unreachable(), gr.skip(), gr.skip()]
    return [f"/run?id={run.id}", *[gr.skip()] * 4, gr.update(interactive=False)]


def _parent(stored: Any) -> str:
    """The run that the form was cloned from, by the draft that the browser sends: a restarted server knows no earlier ones."""
    return str(stored.get("parent") or "")[:LONGEST_ID] if isinstance(stored, dict) else ""


def _by_label(values: Values) -> dict[str, Any]:
    """The settings of which a browser kept the label of a choice, since it knows no more of it."""
    model = models.by_label(values["model"], values)
    return data_chooser.by_label(values) | ({"model": model} if model != values["model"] else {})


def _filled(draft: Draft) -> list[Any]:
    """The draft as updates of the settings' components."""
    sets = data_chooser.choices(*(draft.values[name] for name in FIELDS))
    choices = {"model": models.choices(draft.values), **dict.fromkeys(FIELDS, sets)}
    return [
        gr.update(value=value, choices=choices[name]) if name in choices else value
        for name, value in ((name, draft.values[name]) for name in _NAMES)
    ]


def _absolute(path: str) -> str:
    return str(ROOT / path) if path and (ROOT / path).exists() else path


def _components() -> Page:
    with gr.Row(elem_classes="two-columns"):
        with gr.Column(scale=3, elem_classes="form-column"):
            banner = html(script="lathe.sendClicks(element, trigger)")
            html('<p class="note" id="find-result" role="status"></p>')
            fields, upload, method, rewards, dataset, on_hub, changes, heads = _form()
        with gr.Column(scale=2, elem_classes="beside"):
            with gr.Column(elem_classes="card start-card"):
                html(made(last_head))
                summary = html()
                problems = _step()
                with gr.Row(elem_classes="start-bar"):
                    bar = _step(classes="bar-problems")
                    start = gr.Button("Start", variant="primary", interactive=False, size="lg", elem_id="start")
            memory = memory_panel.build()
            rows = rows_panel.build()
            previews = previews_of()
    steps = [*heads, problems, bar]
    return Page(
        fields, upload, method, rewards, dataset, on_hub, changes, banner, summary, steps, start, memory, rows, previews
    )


def _step(value: str = "", classes: str = "") -> HTML:
    """A place of problems, whose names lead to the fields and whose buttons change them."""
    return html(value, script="lathe.problems(element, trigger, watch)", classes=classes)


def _form() -> tuple[dict[str, Component], gr.File, MethodPanel, RewardsPanel, HTML, HTML, HTML, list[HTML]]:
    choosers = dict.fromkeys(("model", *FIELDS), _chooser)
    data, *others = folds.basic()
    with gr.Column(elem_classes="card group step"):
        heads = [_step(made(partial(opening_html, "data")))]
        with gr.Row(elem_classes="with-upload"):
            fields = form.build([data], choosers)
            upload = upload_box.upload_box()
        dataset = html(script="lathe.mixture(element, trigger, watch)", classes="found-place")
    with gr.Column(elem_classes="card group step"):
        heads.append(_step(made(partial(opening_html, "model"))))
        fields |= form.build(others, choosers)
        on_hub = html(classes="on-hub")
        html(made(folds.one_device), classes="one-device")
    for group in Group:
        with folds.folded(group):
            fields |= folds.build_group(group, choosers)
            if group is settings()["rewards"].group:
                rewards = rewards_panel.build()
            fields |= folds.build_group(group, choosers, advanced=True)
            if group is Group.METHOD:
                panel = method_panel.build()
    return fields, upload, panel, rewards, dataset, on_hub, folds.changes_box(), heads


def _chooser(setting: Setting) -> Component:
    return gr.Dropdown(
        [], value="", allow_custom_value=True, **form.attributes(setting)
    )  # filled when the page is opened
