"""The texts of the pages, in the language of the request, from one catalogue.

A text is its English wording, and app/translations/LANGUAGE.po has it in another language; `python -m tools.catalogue` brings
those files up to date. Python and templates have `_`, `ngettext`, `pgettext` and `gettext_noop`, templates `{% trans %}` too, and
scripts `lathe.gettext` and `lathe.ngettext` (static/lathe.js). What REST answers and the command line prints, with the problems and
causes that the worker and the training name, is English: only the request of a page has another language (app/web/middleware.py).
"""

import io
from contextvars import ContextVar
from functools import cache
from gettext import GNUTranslations, NullTranslations
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from babel.messages.catalog import Catalog

FOLDER = Path(__file__).resolve().parent / "translations"
LANGUAGES = {"": "English", "de": "Deutsch"}
"""The languages by their code, each in its own words. English has none: its texts need no catalogue."""
PLOTS = "app/documents/live/panels.py"
"""Where the titles of plots and the labels of their lines stand, which REST answers in English and scripts show."""
STATES = "app/format/states.py"

_language: ContextVar[str] = ContextVar("language", default="")


def use(code: str) -> None:
    """Sets the language of this request; one that there is not is English."""
    _language.set(code if code in LANGUAGES else "")


def language() -> str:
    """The code of this request's language, empty for English."""
    return _language.get()


def _(english: str) -> str:
    """The text in the language of the request; in English if no catalogue has it."""
    return _catalogue(language()).gettext(english) if english else ""


def ngettext(one: str, many: str, number: int) -> str:
    """The wording for this number."""
    return _catalogue(language()).ngettext(one, many, number)


def pgettext(context: str, english: str) -> str:
    """The text where its English wording means something else in another place; `context` says which it is here."""
    return _catalogue(language()).pgettext(context, english)


def gettext_noop(english: str) -> str:
    """`english` itself: a text that stands in a table, and is translated where it is shown."""
    return english


def of_scripts(code: str, of: tuple[str, ...] = ("static/", PLOTS, STATES)) -> dict[str, str | list[str]]:
    """The texts of scripts and plots by their English wording; those that depend on a number have one wording for each form."""
    messages = (message for message in _messages(code) if any(file.startswith(of) for file, _line in message.locations))
    table: dict[str, str | list[str]] = {}
    for message in messages:
        english = message.id if isinstance(message.id, str) else message.id[0]
        if message.string:
            table[english] = message.string if isinstance(message.string, str) else [*message.string]
    return table


def _messages(code: str) -> "Catalog":
    from babel.messages.pofile import read_po

    with (FOLDER / f"{code}.po").open("rb") as source:
        return read_po(source, locale=code)


@cache
def _catalogue(code: str) -> NullTranslations:
    if not code:
        return NullTranslations()
    from babel.messages.mofile import write_mo

    compiled = io.BytesIO()
    write_mo(compiled, _messages(code))
    compiled.seek(0)
    return GNUTranslations(compiled)
