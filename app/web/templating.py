"""The templates of pages that are read (app/pages/templates/)."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from app import texts

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).resolve().parents[1] / "pages" / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    extensions=["jinja2.ext.i18n"],
)
TEMPLATES.policies["ext.i18n.trimmed"] = True
cast("Any", TEMPLATES).install_gettext_callables(texts._, texts.ngettext, newstyle=False, pgettext=texts.pgettext)
TEMPLATES.globals["language"] = texts.language


def filled(template: str, **values: Any) -> Markup:
    """A template as HTML, for a component of a page that is filled in with Gradio."""
    return Markup(TEMPLATES.get_template(template).render(values))  # noqa: S704 the engine escapes


@dataclass(frozen=True)
class Macros:
    """The macros of a template, as functions that return HTML. The template is read when the first one is asked for."""

    template: str

    def __getattr__(self, name: str) -> Callable[..., Markup]:
        return cast("Callable[..., Markup]", getattr(TEMPLATES.get_template(self.template).module, name))


PARTS = Macros("parts.html")
