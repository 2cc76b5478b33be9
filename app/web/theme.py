"""Gradio's theme, with all colors from static/lathe.css, and the frame (style sheet, header, scripts) around each page.

The server writes the frame into its HTML, so that the browser paints it before Gradio has started.
"""

import inspect
import re
from collections.abc import Mapping

import gradio as gr
from markupsafe import Markup

from app.access import callers
from app.web import assets
from app.web.addresses import PAGES
from app.web.templating import TEMPLATES

_BOTH_SCHEMES = {
    "body_background_fill": "var(--page)",
    "body_text_color": "var(--text)",
    "body_text_color_subdued": "var(--muted)",
    "background_fill_primary": "var(--surface)",
    "background_fill_secondary": "var(--sunken)",
    "border_color_accent": "var(--accent)",
    "border_color_accent_subdued": "var(--line)",
    "border_color_primary": "var(--line)",
    "color_accent_soft": "var(--accent-soft)",
    "link_text_color": "var(--accent)",
    "link_text_color_active": "var(--accent)",
    "link_text_color_hover": "var(--accent-strong)",
    "link_text_color_visited": "var(--accent)",
    "code_background_fill": "var(--sunken)",
    "block_background_fill": "var(--surface)",
    "block_border_color": "var(--line)",
    "block_border_width": "0px",
    "block_info_text_color": "var(--muted)",
    "block_label_background_fill": "transparent",
    "block_label_border_color": "transparent",
    "block_label_border_width": "0px",
    "block_label_text_color": "var(--muted)",
    "block_shadow": "none",
    "block_title_background_fill": "transparent",
    "block_title_border_width": "0px",
    "block_title_text_color": "var(--text)",
    "panel_background_fill": "transparent",
    "panel_border_color": "var(--line)",
    "panel_border_width": "0px",
    "accordion_text_color": "var(--muted)",
    "table_text_color": "var(--text)",
    "checkbox_background_color": "var(--field)",
    "checkbox_background_color_focus": "var(--field)",
    "checkbox_background_color_hover": "var(--field)",
    "checkbox_background_color_selected": "var(--accent)",
    "checkbox_border_color": "var(--line-strong)",
    "checkbox_border_color_focus": "var(--accent)",
    "checkbox_border_color_hover": "var(--accent)",
    "checkbox_border_color_selected": "var(--accent)",
    "checkbox_label_background_fill": "transparent",
    "checkbox_label_background_fill_hover": "var(--hover)",
    "checkbox_label_background_fill_selected": "var(--accent-soft)",
    "checkbox_label_border_color": "var(--line)",
    "checkbox_label_border_color_hover": "var(--line-strong)",
    "checkbox_label_border_color_selected": "var(--accent)",
    "checkbox_label_text_color": "var(--text)",
    "checkbox_label_text_color_selected": "var(--accent-strong)",
    "error_background_fill": "var(--red-soft)",
    "error_border_color": "var(--red)",
    "error_text_color": "var(--red)",
    "error_icon_color": "var(--red)",
    "input_background_fill": "var(--field)",
    "input_background_fill_focus": "var(--field)",
    "input_background_fill_hover": "var(--field)",
    "input_border_color": "var(--line-strong)",
    "input_border_color_focus": "var(--accent)",
    "input_border_color_hover": "var(--line-strong)",
    "input_placeholder_color": "var(--faint)",
    "input_shadow": "none",
    "input_shadow_focus": "0 0 0 3px var(--accent-soft)",
    "loader_color": "var(--accent)",
    "slider_color": "var(--accent)",
    "stat_background_fill": "var(--sunken)",
    "table_border_color": "var(--line)",
    "table_even_background_fill": "transparent",
    "table_odd_background_fill": "transparent",
    "table_row_focus": "var(--hover)",
    "button_primary_background_fill": "var(--accent-fill)",
    "button_primary_background_fill_hover": "var(--accent-fill-hover)",
    "button_primary_border_color": "transparent",
    "button_primary_border_color_hover": "transparent",
    "button_primary_text_color": "var(--on-accent)",
    "button_primary_text_color_hover": "var(--on-accent)",
    "button_primary_shadow": "none",
    "button_secondary_background_fill": "var(--surface)",
    "button_secondary_background_fill_hover": "var(--hover)",
    "button_secondary_border_color": "var(--line-strong)",
    "button_secondary_border_color_hover": "var(--line-strong)",
    "button_secondary_text_color": "var(--text)",
    "button_secondary_text_color_hover": "var(--text)",
    "button_secondary_shadow": "none",
    "button_cancel_background_fill": "var(--surface)",
    "button_cancel_background_fill_hover": "var(--red-soft)",
    "button_cancel_border_color": "var(--red)",
    "button_cancel_border_color_hover": "var(--red)",
    "button_cancel_text_color": "var(--red)",
    "button_cancel_text_color_hover": "var(--red)",
    "button_cancel_shadow": "none",
}

_SHAPE = {
    "color_accent": "var(--accent)",
    "block_padding": "0px",
    "block_radius": "0px",
    "block_title_text_size": "13px",
    "block_title_text_weight": "550",
    "block_info_text_size": "12px",
    "block_label_text_size": "12px",
    "checkbox_label_text_size": "13px",
    "checkbox_label_padding": "4px 10px",
    "checkbox_shadow": "none",
    "container_radius": "8px",
    "input_padding": "6px 9px",
    "input_radius": "6px",
    "input_text_size": "13px",
    "form_gap_width": "0px",
    "layout_gap": "14px",
    "button_large_padding": "8px 16px",
    "button_large_radius": "6px",
    "button_large_text_size": "14px",
    "button_large_text_weight": "550",
    "button_medium_padding": "6px 12px",
    "button_medium_radius": "6px",
    "button_medium_text_size": "13px",
    "button_medium_text_weight": "550",
    "button_small_padding": "3px 9px",
    "button_small_radius": "5px",
    "button_small_text_size": "12px",
    "button_small_text_weight": "550",
    "button_transition": "background-color 0.1s, border-color 0.1s",
}


def theme() -> gr.themes.Base:
    """Gradio's theme. Both color schemes use the same CSS variables, which the style sheet sets by the system's scheme."""
    local = gr.themes.Font  # names of installed fonts: nothing is downloaded
    base = gr.themes.Base(
        font=[local("system-ui"), local("sans-serif")], font_mono=[local("ui-monospace"), local("monospace")]
    )
    known = inspect.signature(base.set).parameters
    dark = {f"{name}_dark": value for name, value in _BOTH_SCHEMES.items() if f"{name}_dark" in known}
    base.set(**_BOTH_SCHEMES, **dark, **_SHAPE)
    return base


_DARK = Markup(
    'document.body.classList.toggle("dark", matchMedia("(prefers-color-scheme: dark)").matches)'
)  # as Gradio will
_THEMES = ("light", "dark")


def chosen(cookies: Mapping[str, str]) -> str:
    """The colors that the browser's user chose on the page Settings: light or dark; empty for those of the system."""
    theme = cookies.get("lathe-theme", "")
    return theme if theme in _THEMES else ""


def frame(html: str, path: str, nonce: str, colors: str) -> str:
    """A Gradio page with our head, header and skeleton, and with `nonce` on every script, as the CSP requires."""
    html = re.sub(r"<script(?=[\s>])", f'<script nonce="{nonce}"', html)
    html = html.replace("<html", f'<html data-theme="{colors}"', 1)
    html = re.sub(r"<head(?:\s[^>]*)?>", lambda tag: f"{tag[0]}{assets.scripts(path, nonce)}", html, count=1)
    html = html.replace("</head>", f"{assets.head(path)}</head>", 1)
    before, element, after = html.partition("<gradio-app")
    dark = Markup('<script nonce="{}">{}</script>').format(nonce, _DARK)
    name = next((page.name for page in PAGES if page.path == path), "")
    skeleton = TEMPLATES.get_template("skeleton.html").render(name=name)
    return f"{before}{dark}{header(path)}{skeleton}{element}{after}"


def header(path: str) -> Markup:
    """The header of every page, with the page at `path` marked."""
    here = Markup(' aria-current="page"')
    links = Markup("").join(
        Markup('<a href="{}"{}>{}</a>').format(page.path, here if page.path == path else "", page.name)
        for page in PAGES
        if page.in_header
    )
    return Markup(
        '<header class="top"><a class="brand" href="/"><img src="{logo}" alt="" width="22" height="22">Lathe</a>'
        '<button type="button" class="button menu" popovertarget="pages">Menu</button>'
        '<nav id="pages" popover aria-label="Pages">{links}</nav><a class="quiet" href="/start"{tour}>Tour</a>{who}</header>'
    ).format(logo=assets.static_url("favicon.svg"), links=links, tour=here if path == "/start" else "", who=_who())


def _who() -> Markup:
    """The signed-in user and a sign-out button; nothing for the server's own user, who does not sign in."""
    caller = callers.current()
    if caller.here:
        return Markup("")
    return Markup(
        '<form class="who" method="post" action="/sign-out"><span>{}</span>'
        '<button type="submit" class="button small">Sign out</button></form>'
    ).format(caller.name)
