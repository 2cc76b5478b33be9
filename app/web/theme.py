"""Gradio's theme, with all colors from static/lathe.css, and the frame (style sheet, header, scripts) around each page.

The server writes the frame into its HTML, so that the browser paints it before Gradio has started.
"""

import inspect
import json
import re
from collections.abc import Mapping

import gradio as gr
from markupsafe import Markup, escape

from app import texts
from app.access import callers
from app.texts import _
from app.web import assets, gradio_texts
from app.web.addresses import PAGES
from app.web.templating import TEMPLATES

# Gradio's variables by the value that they get.
_BOTH_SCHEMES = {
    "var(--page)": "body_background_fill",
    "var(--text)": (
        "body_text_color block_title_text_color table_text_color checkbox_label_text_color "
        "button_secondary_text_color button_secondary_text_color_hover"
    ),
    "var(--muted)": "body_text_color_subdued block_info_text_color block_label_text_color accordion_text_color",
    "var(--surface)": (
        "background_fill_primary block_background_fill button_secondary_background_fill button_cancel_background_fill"
    ),
    "var(--sunken)": "background_fill_secondary code_background_fill stat_background_fill",
    "var(--accent)": (
        "border_color_accent link_text_color link_text_color_active link_text_color_visited "
        "checkbox_background_color_selected checkbox_border_color_focus checkbox_border_color_hover "
        "checkbox_border_color_selected checkbox_label_border_color_selected input_border_color_focus "
        "loader_color slider_color"
    ),
    "var(--line)": (
        "border_color_accent_subdued border_color_primary block_border_color panel_border_color "
        "checkbox_label_border_color table_border_color"
    ),
    "var(--accent-soft)": "color_accent_soft checkbox_label_background_fill_selected",
    "var(--accent-strong)": "link_text_color_hover checkbox_label_text_color_selected",
    "0px": "block_border_width block_label_border_width block_title_border_width panel_border_width",
    "transparent": (
        "block_label_background_fill block_label_border_color block_title_background_fill "
        "panel_background_fill checkbox_label_background_fill table_even_background_fill "
        "table_odd_background_fill button_primary_border_color button_primary_border_color_hover"
    ),
    "none": "block_shadow input_shadow button_primary_shadow button_secondary_shadow button_cancel_shadow",
    "var(--field)": (
        "checkbox_background_color checkbox_background_color_focus checkbox_background_color_hover "
        "input_background_fill input_background_fill_focus input_background_fill_hover"
    ),
    "var(--line-strong)": (
        "checkbox_border_color checkbox_label_border_color_hover input_border_color input_border_color_hover "
        "button_secondary_border_color button_secondary_border_color_hover"
    ),
    "var(--hover)": "checkbox_label_background_fill_hover table_row_focus button_secondary_background_fill_hover",
    "var(--red-soft)": "error_background_fill button_cancel_background_fill_hover",
    "var(--red)": (
        "error_border_color error_text_color error_icon_color button_cancel_border_color "
        "button_cancel_border_color_hover button_cancel_text_color button_cancel_text_color_hover"
    ),
    "var(--faint)": "input_placeholder_color",
    "0 0 0 3px var(--accent-soft)": "input_shadow_focus",
    "var(--accent-fill)": "button_primary_background_fill",
    "var(--accent-fill-hover)": "button_primary_background_fill_hover",
    "var(--on-accent)": "button_primary_text_color button_primary_text_color_hover",
}
_SHAPE = {
    "var(--accent)": "color_accent",
    "0px": "block_padding block_radius form_gap_width",
    "13px": "block_title_text_size checkbox_label_text_size input_text_size button_medium_text_size",
    "550": "block_title_text_weight button_large_text_weight button_medium_text_weight button_small_text_weight",
    "12px": "block_info_text_size block_label_text_size button_small_text_size",
    "4px 10px": "checkbox_label_padding",
    "none": "checkbox_shadow",
    "8px": "container_radius",
    "6px 9px": "input_padding",
    "6px": "input_radius button_large_radius button_medium_radius",
    "14px": "layout_gap button_large_text_size",
    "8px 16px": "button_large_padding",
    "6px 12px": "button_medium_padding",
    "3px 9px": "button_small_padding",
    "5px": "button_small_radius",
    "background-color 0.1s, border-color 0.1s": "button_transition",
}


def theme() -> gr.themes.Base:
    """Gradio's theme. Both color schemes use the same CSS variables, which the style sheet sets by the system's scheme."""
    local = gr.themes.Font  # names of installed fonts: nothing is downloaded
    base = gr.themes.Base(
        font=[local("system-ui"), local("sans-serif")], font_mono=[local("ui-monospace"), local("monospace")]
    )
    known, colors = inspect.signature(base.set).parameters, _by_variable(_BOTH_SCHEMES)
    dark = {f"{name}_dark": value for name, value in colors.items() if f"{name}_dark" in known}
    base.set(**colors, **dark, **_by_variable(_SHAPE))
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
    skeleton = TEMPLATES.get_template("skeleton.html").render(name=_(name))
    return f"{before}{dark}{header(path)}{skeleton}{_MAIN}{element}{after}"


def header(path: str) -> Markup:
    """The header of every page, with the page at `path` marked, after a link that skips it."""
    here = Markup(' aria-current="page"')
    marks = {page.parent: Markup(' aria-current="true"') for page in PAGES if page.path == path} | {path: here}
    links = Markup("").join(
        Markup('<a href="{}"{}>{}</a>').format(page.path, marks.get(page.path, ""), _(page.name))
        for page in PAGES
        if page.in_header
    )
    return Markup(
        '<a class="skip" href="#main">{skip}</a>'
        '<header class="top"><a class="brand" href="/"><img src="{logo}" alt="" width="22" height="22">Lathe</a>'
        '<button type="button" class="button menu" popovertarget="pages">{menu}</button>'
        '<nav id="pages" popover aria-label="{pages}">{links}</nav><a class="quiet" href="/start"{here}>{tour}</a>{who}</header>'
    ).format(
        skip=_("Skip to the content"),
        logo=assets.static_url("favicon.svg"),
        menu=_("Menu"),
        pages=_("Pages"),
        links=links,
        here=here if path == "/start" else "",
        tour=_("Tour"),
        who=_who(),
    )


def _who() -> Markup:
    """The signed-in user and a sign-out button; nothing for the server's own user, who does not sign in."""
    caller = callers.current()
    if caller.here:
        return Markup("")
    return Markup(
        '<form class="who" method="post" action="/sign-out"><span>{}</span>'
        '<button type="submit" class="button small">{}</button></form>'
    ).format(caller.name, _("Sign out"))
