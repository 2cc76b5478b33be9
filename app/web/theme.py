"""Gradio's theme, with all colors from static/lathe.css, and the frame (style sheet, header, scripts) around each page.

The server writes the frame into its HTML, so that the browser paints it before Gradio has started.
"""

import inspect
import json
import re
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path

import gradio as gr
from markupsafe import Markup, escape

from app import texts
from app.access import callers
from app.texts import _
from app.web import assets, gradio_texts
from app.web.addresses import PAGES
from app.web.templating import PARTS, TEMPLATES
from training.run_folder import full_disk
from worker.settings import get_settings

_VARIABLES = tomllib.loads(Path(__file__).with_name("theme.toml").read_text(encoding="utf-8"))


FIRST: dict[str, Callable[[], Markup]] = {}
"""What pages of Gradio show before they are live, by path, as far as it can be used at once."""


def theme() -> gr.themes.Base:
    """Gradio's theme. Both color schemes use the same CSS variables, which the style sheet sets by the system's scheme."""
    local = gr.themes.Font  # names of installed fonts: nothing is downloaded
    base = gr.themes.Base(
        font=[local("system-ui"), local("sans-serif")], font_mono=[local("ui-monospace"), local("monospace")]
    )
    known, colors = inspect.signature(base.set).parameters, _by_variable(_VARIABLES["colors"])
    dark = {f"{name}_dark": value for name, value in colors.items() if f"{name}_dark" in known}
    base.set(**colors, **dark, **_by_variable(_VARIABLES["shape"]))
    return base


def _by_variable(table: Mapping[str, str]) -> dict[str, str]:
    return {name: value for value, names in table.items() for name in names.split()}


_DARK = Markup(
    'document.body.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches)'
)  # as Gradio will
_MAIN = Markup('<span id="main" tabindex="-1"></span>')  # the content follows once Gradio has drawn it
_THEMES = ("light", "dark")


def chosen(cookies: Mapping[str, str]) -> str:
    """The colors that the browser's user chose on the page Settings: light or dark; empty for those of the system."""
    theme = cookies.get("lathe-theme", "")
    return theme if theme in _THEMES else ""


def frame(html: str, path: str, nonce: str, colors: str) -> str:
    """A Gradio page with our head, header and skeleton, and with `nonce` on every script, as the CSP requires."""
    html = gradio_texts.translated(html)
    html = re.sub(r"<script(?=[\s>])", f'<script nonce="{nonce}"', html)
    # Gradio's own words would be in the browser's language, and stand on no page of Lathe.
    words = escape(json.dumps(_("Drop a file here or click to choose"), ensure_ascii=False))
    root = f'lang="{texts.language() or "en"}" data-theme="{colors}" style="--upload-words: {words}"'
    html = html.replace('lang="en"', root, 1)
    html = re.sub(r"<head(?:\s[^>]*)?>", lambda tag: f"{tag[0]}{assets.scripts(path, nonce)}", html, count=1)
    html = html.replace("</head>", f"{assets.head(path)}</head>", 1)
    before, element, after = html.partition("<gradio-app")
    dark = Markup('<script nonce="{}">{}</script>').format(nonce, _DARK)
    name = next((page.name for page in PAGES if page.path == path), "")
    skeleton = TEMPLATES.get_template("skeleton.html").render(
        name=_(name), content=FIRST[path]() if path in FIRST else ""
    )
    return f"{before}{dark}{header(path)}{skeleton}{_MAIN}{element}{after}"


def header(path: str) -> Markup:
    """The header of every page, with the page at `path` marked, after a link that skips it."""
    here = Markup(' aria-current="page"')
    marks = {page.parent: Markup(' aria-current="true"') for page in PAGES if page.path == path} | {path: here}
    links = Markup("").join(
        Markup('<a href="{}" data-name="{name}"{}>{name}</a>').format(
            page.path, marks.get(page.path, ""), name=_(page.name)
        )
        for page in PAGES
        if page.in_header
    )
    return Markup(
        '<a class="skip" href="#main">{skip}</a>'
        '<header class="top"><a class="brand" href="/"><img src="{logo}" alt="" width="22" height="22">Lathe</a>'
        '<button type="button" class="button menu" popovertarget="pages">{menu}</button>'
        '<nav id="pages" popover aria-label="{pages}">{links}</nav><a class="quiet" href="/start"{here}>{tour}</a>{who}</header>'
        "{disk}"
    ).format(
        skip=_("Skip to the content"),
        logo=assets.static_url("favicon.svg"),
        menu=_("Menu"),
        pages=_("Pages"),
        links=links,
        here=here if path == "/start" else "",
        tour=_("Tour"),
        who=_who(),
        disk=_read_only(),
    )


def _read_only() -> Markup:
    """That the data folder cannot be written to: pages only read, and would not notice."""
    disk = full_disk.read_only(get_settings().data_dir)
    if disk is None:
        return Markup("")
    waits = _("Runs wait, and continue once it is writable. No data is lost.")
    return PARTS.alert(disk.message, waits, disk.fix)


def _who() -> Markup:
    """The signed-in user and a sign-out button; nothing for the server's own user, who does not sign in."""
    caller = callers.current()
    if caller.here:
        return Markup("")
    return Markup(
        '<form class="who" method="post" action="/sign-out"><span>{}</span>'
        '<button type="submit" class="button small">{}</button></form>'
    ).format(caller.name, _("Sign out"))
