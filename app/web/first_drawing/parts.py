"""Gradio's components as HTML, with the markup and classes of its own drawing, so that both have the same geometry.

Controls are inert: they have no effect before the live page is there. Links work.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

import gradio as gr
from markupsafe import Markup

from app.web.first_drawing.gradio_files import scoped

Props = Mapping[str, Any]

VERSION = gr.__version__.replace(".", "-")
_CONTROL = re.compile(r"<(button|input|select|textarea|summary)(?=[\s>])")
_ARROW = Markup(
    '<svg class="dropdown-arrow {}" width="100%" height="100%" viewBox="0 0 18 18"><path d="M5 8l4 4 4-4z"/></svg>'
)


def html(props: Props) -> Markup:
    """Our own HTML, or the template of a component that a script fills."""
    value = str(props.get("html_template", "${value}")).replace("${value}", str(props.get("value") or ""))
    inner = Markup(_CONTROL.sub(r"<\1 inert", value))  # noqa: S704 the page's own HTML
    body = Markup('<div class="html-container {}"><div class="{} {}">{}</div></div>').format(
        scoped(r"\.html-container\.(svelte-\w+)"),
        _classes(props),
        scoped(r"\.has_children\.(svelte-\w+)", "html"),
        inner,
    )
    return _block(props, body, "hide-container auto-margin", overflow="visible", least=0)


def textbox(props: Props) -> Markup:
    """A field for text or a number."""
    mark = scoped(r"show_textbox_border\.(svelte-\w+)")
    rows = max(int(props.get("lines") or 1), 1)
    value = "" if props.get("value") is None else props["value"]
    height = Markup(' style="height: {}px"').format(32 if props.get("container", True) else 30.2) if rows == 1 else ""
    field = Markup('<textarea class="{0}" rows="{1}" placeholder="{2}"{3} inert>\n{4}</textarea>').format(
        mark, rows, props.get("placeholder") or "", height, value
    )
    body = Markup(
        '<label class="{0} {1} show_textbox_border">{2}<div class="input-container {0}">{3}</div></label>'
    ).format(mark, "container" if props.get("container", True) else "", _heading(props), field)
    return _block(props, body, _frame(props) if props.get("container", True) else "")


def number(props: Props) -> Markup:
    """A field for a number."""
    mark = scoped(r"label\.(svelte-\w+)", "number")
    field = Markup('<input type="number" class="{}" value="{}" inert>').format(
        mark, "" if props.get("value") is None else props["value"]
    )
    return _block(
        props, Markup('<label class="block {}">{}{}</label>').format(mark, _heading(props), field), _frame(props)
    )


def dropdown(props: Props) -> Markup:
    """A list to choose from, closed."""
    mark = scoped(
        r"\.token\.(svelte-\w+)" if props.get("multiselect") else r"\.container\.(svelte-\w+)\{height", "dropdown"
    )
    labels = {value: label for label, value in props.get("choices") or ()}
    value = props.get("value")
    shown = "" if isinstance(value, list) else labels.get(value, value or "")
    body = Markup(
        '<div class="{0} container">{1}<div class="wrap {0}"><div class="wrap-inner {0}"><div class="secondary-wrap {0}">'
        '<input class="border-none {0}" value="{2}" aria-label="{3}" inert><div class="icon-wrap {0}">{4}</div></div></div></div>'
        "</div>"
    ).format(mark, _heading(props), shown, props["label"], _ARROW.format(scoped(r"\.dropdown-arrow\.(svelte-\w+)")))
    return _block(props, body, _frame(props))


def radio(props: Props) -> Markup:
    """Choices side by side."""
    label = Markup(
        '<label class="{0} {1}"><input type="radio" class="{0}" disabled{2}> <span class="{0}">{3}</span></label>'
    )
    return _choices(props, "radio", label, [props.get("value")])


def checkboxgroup(props: Props) -> Markup:
    """Choices of which several can be taken."""
    label = Markup(
        '<label class="{0} {1}"><input type="checkbox" class="{0}" disabled{2}> <span class="ml-2 {0}">{3}</span></label>'
    )
    return _choices(props, "checkboxgroup", label, props.get("value") or [])


def checkbox(props: Props) -> Markup:
    """One box with its label."""
    body = Markup(
        '<label class="checkbox-container {0}" inert><input type="checkbox" class="{0}"{1}> '
        '<span class="label-text {0}">{2}</span></label>{3}'
    ).format(scoped(r"\.checkbox-container\.(svelte-\w+)"), _checked(props.get("value")), props["label"], _info(props))
    return _block(props, body, _frame(props), overflow="auto", least=0)


def button(props: Props) -> Markup:
    """A button."""
    width = "" if props.get("scale") is None else f"flex-grow: {props['scale']};"
    width += " width: fit-content;" if props.get("scale") == 0 else ""
    width += f" min-width: min({props['min_width']}px, 100%);" if props.get("min_width") else ""
    return Markup('<button type="button" class="{} {} {} {}"{} style="{}" inert{}>{}</button>').format(
        props.get("size", "lg"), props.get("variant", "secondary"), _classes(props), scoped(r"button\[disabled\]\.(svelte-\w+)"),
        _id(props), width, Markup("") if props.get("interactive", True) else Markup(" disabled"), props.get("value") or "",
    )  # fmt: skip


def file(props: Props) -> Markup:
    """A box for uploads."""
    body = Markup(
        '<label class="{label} float">{text}</label><button type="button" style="height: {height}px" inert '
        'class="upload-container {upload} center boundedheight flex">'
        '<div class="wrap {prompt}">Drop File Here <span class="or {prompt}">- or -</span> Click to Upload</div></button>'
    ).format(
        label=scoped(r"label\.float\.(svelte-\w+)"), text=props["label"], height=props.get("height") or 200,
        upload=scoped(r"\.upload-container\.(svelte-\w+)\{cursor:pointer;width"), prompt=scoped(r"\.prompt\.(svelte-\w+)"),
    )  # fmt: skip
    return _block(props, body, "auto-margin", border="dashed")


def code(props: Props) -> Markup:
    """A text with equal letters."""
    height = 19.1875 * (int(props.get("lines") or 0) + 1)
    body = Markup('<div class="cm-scroller" style="min-height: {}px"><pre class="cm-content">{}</pre></div>').format(
        height, props.get("value") or ""
    )
    return _block(props, body, "auto-margin")


DRAWN: Mapping[str, Callable[[Props], Markup]] = {
    "html": html, "textbox": textbox, "number": number, "dropdown": dropdown, "radio": radio, "checkboxgroup": checkboxgroup,
    "checkbox": checkbox, "button": button, "file": file, "code": code,
}  # fmt: skip
"""The components that a person sees, by kind."""


def row(props: Props, inner: Markup) -> Markup:
    """A row of components."""
    return Markup('<div class="row {} {} unequal-height"{}>{}</div>').format(
        _classes(props), scoped(r"\.unequal-height\.(svelte-\w+)"), _id(props), inner
    )


def column(props: Props, inner: Markup) -> Markup:
    """A column of components."""
    return _laid("column", props, inner)


def form(props: Props, inner: Markup) -> Markup:
    """Gradio's group of neighboring fields."""
    return _laid("form", props, inner)


def tabs(props: Props, inner: Markup, labels: list[str]) -> Markup:
    """Tabs; `inner` is the content of the first one."""
    mark = scoped(r"\.tab-wrapper\.(svelte-\w+)")
    heads = Markup("").join(
        Markup('<button type="button" class="{} {}" inert>{}</button>').format(mark, "" if place else "selected", label)
        for place, label in enumerate(labels)
    )
    return Markup(
        '<div class="tabs {1} {0}"><div class="tab-wrapper {0}"><div class="tab-container {0}">{2}</div></div>'
        '<div class="tabitem {3}" style="display: flex">{4}</div></div>'
    ).format(mark, _classes(props), heads, scoped(r"div\.(svelte-\w+)", "tabitem"), inner)


def page(inner: Markup) -> Markup:
    """Gradio's frame around a page's components."""
    template = Markup(
        '<div class="gradio-container gradio-container-{version} {core} fill_width">'
        '<div class="main fillable {core} app fill_width"><div class="wrap {blocks}">'
        '<main class="contain {blocks}" style="flex-grow: 1">{inner}</main></div></div></div>'
    )
    core, blocks = scoped(r"\.fillable\.(svelte-\w+)"), scoped(r"main\.contain\.(svelte-\w+)")
    return template.format(version=VERSION, core=core, blocks=blocks, inner=inner)


def _laid(kind: str, props: Props, inner: Markup) -> Markup:
    grows = Markup("flex-grow: {};").format(props["scale"]) if props.get("scale") is not None else Markup("")
    return Markup('<div class="{} {} {}"{} style="{} min-width: min({}px, 100%)">{}</div>').format(
        kind, _classes(props), scoped(r"div\.(svelte-\w+)", kind), _id(props), grows, props.get("min_width") or 0, inner
    )


def _block(
    props: Props,
    body: Markup,
    frame: str,
    *,
    overflow: str = "hidden",
    least: int = 160,
    border: str = "solid",
    tag: str = "div",
) -> Markup:
    """The box around a component."""
    grows = Markup("flex-grow: {};").format(props["scale"]) if props.get("scale") else Markup("")
    template = Markup(
        '<{tag} class="block {own} {block} {frame}"{id} style="border-style: {border}; overflow: {overflow}; {grows} '
        'min-width: min({least}px, 100%)">{body}</{tag}>'
    )
    return template.format(
        tag=Markup(tag), own=_classes(props), block=scoped(r"\.auto-margin\.(svelte-\w+)"), frame=frame, id=_id(props),  # noqa: S704 ours
        border=border, overflow=overflow, grows=grows, least=props.get("min_width", least), body=body,
    )  # fmt: skip


def _choices(props: Props, kind: str, template: Markup, taken: list[Any]) -> Markup:
    mark = scoped(r"label\.(svelte-\w+)", kind)
    labels = Markup("").join(
        template.format(mark, "selected" if value in taken else "", _checked(value in taken), label)
        for label, value in props["choices"]
    )
    body = Markup('{}<div class="wrap {}" inert>{}</div>').format(
        _heading(props), scoped(r"\.wrap\.(svelte-\w+)", kind) or mark, labels
    )
    return _block(props, body, _frame(props), overflow="auto", tag="fieldset")


def _frame(props: Props) -> str:
    """The classes of a field's box."""
    inside = "padded hide-container" if not props.get("container", True) else "padded"
    return inside if props.get("scale") else f"{inside} auto-margin"


def _heading(props: Props) -> Markup:
    """A field's label and the line of help below it."""
    shown = "" if props.get("show_label", True) else "hide sr-only"
    info = _info(props)
    return Markup('<span class="{} {} {}" data-testid="block-info">{}</span>{}').format(
        scoped(r"span\.has-info\.(svelte-\w+)"), shown, "has-info" if info else "", props.get("label") or "", info
    )


def _info(props: Props) -> Markup:
    if not props.get("info"):
        return Markup("")
    text = re.sub(r"\\([*\\])", r"\1", props["info"])  # Gradio renders it as Markdown
    return Markup('<div class="info-text {}">{}</div>').format(scoped(r"\.info-text\.(svelte-\w+)"), text)


def _checked(value: object) -> Markup:
    return Markup(" checked") if value else Markup("")


def _classes(props: Props) -> str:
    return " ".join(props.get("elem_classes") or [])


def _id(props: Props) -> Markup:
    return Markup(' id="{}"').format(props["elem_id"]) if props.get("elem_id") else Markup("")
