"""The page Playground, at /playground: the same prompt answered by a base model, adapters and checkpoints, side by side.

The page's script asks the REST routes: /api/served for the models and their process, /v1 for the answers.
"""

import gradio as gr
from markupsafe import Markup

from app.documents.playground import offered
from app.pages.common.html import database_unreachable, each, html, panel, title
from worker.store.database import UNREACHABLE

_SETTINGS = (
    # name, label, value, smallest, largest, step, explanation
    ("temperature", "Temperature", "0", "0", "10", "0.1", "0: greedy decoding"),
    ("top_p", "Top p", "1", "0.01", "1", "0.01", "samples from the likeliest tokens with this total probability"),
    ("top_k", "Top k", "0", "0", "1000", "1", "samples from this many tokens; 0: from all"),
    ("max_tokens", "Maximum tokens", "256", "1", "100000", "1", "length of an answer"),
    ("seed", "Seed", "0", "0", "2147483647", "1", "the same seed samples the same answer"),
)
_NUMBER = (
    '<label title="{explanation}">{label}<input type="number" name="{name}" value="{value}" min="{least}" max="{most}" '
    'step="{step}"></label>'
)
_MODELS = Markup(
    '<div class="pick"><label>Base model<select id="playground-base"></select></label>'
    '<fieldset id="playground-models"><legend>Compare (up to 5)</legend></fieldset></div>'
    '<div id="playground-state" class="served" role="status"></div>'
)
_PROMPT = Markup(
    '<div class="texts"><label>System message<textarea id="playground-system" rows="2"></textarea></label>'
    '<label>Prompt<textarea id="playground-user" rows="5"></textarea></label></div>'
    '<div class="controls"><label>As<select id="playground-mode"><option value="chat">chat message</option>'
    '<option value="text">plain text</option></select></label>{settings}'
    '<label>Stop at<input type="text" id="playground-stop" placeholder="none"></label></div>'
    '<div class="controls"><label class="wide">Rows of the data<select id="playground-rows"></select></label>'
    '<span class="note" id="playground-expected"></span><span class="spring"></span>'
    '<button type="button" class="button" id="playground-cancel" disabled>Stop</button>'
    '<button type="button" class="button primary" id="playground-ask" disabled>Ask</button></div>'
)
_SETS = Markup(
    '<div class="controls"><label class="wide">Set<select id="set-chosen"></select></label>'
    '<label class="wide">Name<input type="text" id="set-name" maxlength="120" placeholder="a new set"></label>'
    '<button type="button" class="button" id="set-add">Add this prompt</button><span class="spring"></span>'
    '<button type="button" class="button" id="set-delete" disabled>Delete the set</button>'
    '<button type="button" class="button primary" id="set-run" disabled>Run the set</button></div>'
    '<div class="controls"><label class="check"><input type="checkbox" id="set-every" disabled>Run against every new result</label>'
    '<span class="spring"></span><label>Mark differences from<select id="set-against"></select></label>'
    '<label>Order<select id="set-order"><option value="kept">as kept</option><option value="differ">most different first</option>'
    "</select></label></div>"
    '<p class="note" id="set-note" role="status"></p><div class="table-wrap" id="set-table"></div>'
)
_EMPTY = Markup(
    '<div class="empty" id="playground-empty" hidden><h2>No model to try yet</h2><p>Train a model first: you can then compare '
    "its result and its checkpoints with the base model, on prompts of your own or on held-out rows.</p>"
    '<a class="button primary" href="/new">New run</a></div>'
)


def build(demo: gr.Blocks) -> None:  # noqa: ARG001 every page takes it
    """The page; its script fills it."""
    title("Playground", Markup('<span class="note">OpenAI-compatible at <code>/v1</code></span>'))
    fields = ("name", "label", "value", "least", "most", "step", "explanation")
    settings = Markup("").join(Markup(_NUMBER).format(**dict(zip(fields, one, strict=True))) for one in _SETTINGS)  # noqa: S704 ours
    body = panel("Models", _MODELS) + panel("Prompt", _PROMPT.format(settings=settings))
    answers = Markup('<div id="playground-answers" class="columns"></div>')
    whole = body + answers + panel("Prompt sets", _SETS)
    filled = str(_EMPTY + Markup('<div class="playground" hidden>{}</div>').format(whole))
    html(filled, script="lathe.playground(element)", first=lambda: _first(filled))


def _first(filled: str) -> Markup:
    """The page as its script will show it: what can be done without a model, or the base models to choose from."""
    try:
        groups = offered()
    except UNREACHABLE:
        return database_unreachable()
    if not groups:
        return Markup(filled.replace('id="playground-empty" hidden', 'id="playground-empty"'))  # noqa: S704 ours
    options = each("<option>{}</option>", [(group["base"],) for group in groups])
    shown = filled.replace('class="playground" hidden', 'class="playground"')
    return Markup(shown.replace('<select id="playground-base">', f'<select id="playground-base">{options}'))  # noqa: S704 ours
