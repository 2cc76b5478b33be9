"""The catalogue of the pages' texts: none is missing, none is outside of it, and a page in German shows no English one."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import cast

import pytest
from babel.messages.catalog import Catalog, Message
from babel.messages.pofile import read_po
from jinja2 import nodes
from prepared import Prepared, prepared_installation  # noqa: F401
from web import client

from app import texts
from app.format.states import STATES
from app.web.templating import TEMPLATES
from benchmarks.chaos import phases
from tools import catalogue
from training.config.peft_methods import methods
from training.run_folder.stages import MISSING, PACKING, STAGES
from worker.store.tables import Status

LANGUAGES = [code for code in texts.LANGUAGES if code]
TEMPLATE_FOLDER = Path(catalogue.ROOT) / "app" / "pages" / "templates"
ENGLISH_TEMPLATES = {"reference.html"}
"""The reference of REST is documentation, and in English as what REST answers."""

NOT_TRANSLATED = {"Lathe", "- Lathe", "id", "x"}
"""The same in every language: the name of the program, the id of a token, and the times sign of "cuda x2"."""

READ_ATTRIBUTES = ("title", "aria-label", "placeholder", "alt", "data-told", "data-label")
EXAMPLES = {
    "https://hooks.slack.com/services/... or you@example.org",
    "http://localhost:8000/v1",
}
"""Attributes of templates that show the form of an address."""


def written(code: str) -> Catalog:
    """The catalogue of a language in app/translations."""
    with (texts.FOLDER / f"{code}.po").open("rb") as source:
        return read_po(source, locale=code)


def forms(value: str | tuple[str, ...] | list[str] | None) -> list[str]:
    """The wordings of a message: one, or one for each form of a number."""
    return [value or ""] if isinstance(value, str | None) else [*value]


def messages(of: Catalog) -> list[Message]:
    return [message for message in of if message.id]


@pytest.mark.parametrize("code", LANGUAGES)
def test_the_catalogue_has_exactly_the_texts_of_the_pages(code: str) -> None:
    on_disk = {tuple(forms(message.id)) for message in messages(written(code))}
    of_pages = {tuple(forms(message.id)) for message in messages(catalogue.texts_of_pages())}
    assert of_pages - on_disk == set(), "run python -m tools.catalogue"
    assert on_disk - of_pages == set(), "run python -m tools.catalogue"


@pytest.mark.parametrize("code", LANGUAGES)
def test_every_text_has_a_translation_for_each_form(code: str) -> None:
    """Only the help of the options of PEFT's methods is in PEFT's words, which are English."""
    of_peft = {option.help for method in methods().values() for option in method.options.values()}
    assert [message.id for message in catalogue.missing(written(code)) if message.id not in of_peft] == []


PLACEHOLDER = re.compile(r"%\(\w+\)s|%s|\{\w*[^{}\s]*\}|</?\w+[^<>]*>")


def fixed(text: str) -> list[str]:
    """What a translation must keep: placeholders, and tags with their attributes."""
    return sorted(PLACEHOLDER.findall(text))


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_translation_has_the_placeholders_and_tags_of_its_text(code: str) -> None:
    wrong = [
        (message.id, translated)
        for message in messages(written(code))
        for translated in filter(None, forms(message.string))
        if fixed(translated) not in map(fixed, forms(message.id))
    ]
    assert wrong == []


def test_a_translation_that_lacks_a_placeholder_or_changes_a_tag_is_noticed() -> None:
    assert fixed("{count} of %(total)s") != fixed("{count} von {total}")
    assert fixed('<a href="/start">tour</a>') != fixed('<a href="/tour">Rundgang</a>')
    assert fixed("<b>{name}</b>: %(size)s") == fixed("%(size)s: <b>{name}</b>")


@dataclass
class Unmarked:
    """Reads the text of a template that is no expression, and keeps what a person would read of it."""

    found: list[str] = field(default_factory=list)
    tag: str | None = None  # what was read of a tag that is open
    skipped: list[str] = field(default_factory=list)  # elements that hold no text of ours

    def read(self, text: str) -> None:
        for piece in re.split(r"(<|>)", text):
            if piece == "<" and self.tag is None:
                self.tag = ""
            elif piece == ">" and self.tag is not None:
                self._close(self.tag)
                self.tag = None
            elif self.tag is not None:
                self.tag += piece
            elif not self.skipped and (shown := _words(piece)) and shown not in NOT_TRANSLATED:
                self.found.append(shown)

    def expression(self) -> None:
        """An expression stands here; it is not read, and is a part of an open tag."""
        if self.tag is not None:
            self.tag += "\0"

    def _close(self, tag: str) -> None:
        name = tag.split(maxsplit=1)[0].strip("/") if tag.split() else ""
        if name in ("code", "pre", "style", "script"):
            self.skipped = self.skipped[:-1] if tag.startswith("/") else [*self.skipped, name]
        for attribute in READ_ATTRIBUTES:
            for value in re.findall(rf'\b{attribute}="([^"]*)"', tag):
                if (shown := _words(value.replace("\0", ""))) and shown not in EXAMPLES | NOT_TRANSLATED:
                    self.found.append(f"{attribute}: {shown}")


def _words(text: str) -> str:
    """The text, if it has a letter beside entities and is no address."""
    shown = re.sub(r"&#?\w+;", "", text).strip(" \n·,.:…")
    return " ".join(shown.split()) if re.search("[^\\W\\d_]", shown) and not shown.startswith("/") else ""


def unmarked(source: str) -> list[str]:
    """The texts of a template that no catalogue can have."""
    reader = Unmarked()

    def walk(node: nodes.Node) -> None:
        if isinstance(node, nodes.TemplateData):
            reader.read(node.data)
        elif isinstance(node, nodes.Output):
            for child in node.nodes:
                walk(child)
        elif isinstance(node, nodes.Expr):
            reader.expression()
        else:
            for inner in node.iter_child_nodes():
                if not isinstance(inner, nodes.Expr):
                    walk(inner)

    walk(TEMPLATES.parse(source))
    return reader.found


TEMPLATE_NAMES = sorted(str(path.relative_to(TEMPLATE_FOLDER)) for path in TEMPLATE_FOLDER.rglob("*.html"))


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_a_template_has_no_text_outside_of_the_catalogue(name: str) -> None:
    if name not in ENGLISH_TEMPLATES:
        assert unmarked((TEMPLATE_FOLDER / name).read_text()) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("<p>Some words</p>", ["Some words"]),
        ('<p{% if a %} class="wide"{% endif %}>{{ _("Some") }} {% trans %}words{% endtrans %}</p>', []),
        ('<a title="Open {{ name }}">{{ name }}</a>', ["title: Open"]),
        ('<a title="{{ _("Open {name}").format(name=name) }}">·</a>', []),
        ("{% if a %}yes{% else %}{{ b }}{% endif %}", ["yes"]),
        ("{% macro m() %}<b>more</b>{% endmacro %}", ["more"]),
        ("<code>lathe up</code>&nbsp;<pre>a</pre>", []),
    ],
)
def test_a_text_outside_of_the_catalogue_is_noticed(source: str, found: list[str]) -> None:
    assert unmarked(source) == found


class Shown(HTMLParser):
    """The texts of a page, and of its attributes that a person reads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in ("code", "pre", "style", "script"):
            self.open.append(tag)
        self.texts += [value for name, value in attrs if name in READ_ATTRIBUTES and value]

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if not self.open:
            self.texts.append(data)


def pages(of: Prepared) -> Iterator[str]:
    """The pages that are read, with something to show."""
    yield from (
        "/",
        "/?search=nothing",
        "/?group=method",
        "/datasets",
        "/sweeps",
        "/playground",
        "/diagnose",
        "/system",
    )
    yield from (
        "/settings",
        "/start",
        f"/sweep?id={of.sweep}",
        f"/compare?runs={of.finished},{of.failed}",
        "/run?id=none",
    )
    yield from (f"/run?id={run}" for run in (of.finished, of.failed, of.waiting))
    yield from (f"/dataset?id={of.dataset}{tab}" for tab in ("", "&tab=columns", "&search=a"))


def english_texts(code: str) -> set[str]:
    """The texts without a placeholder that are different in this language, and are no translation of another text."""
    single = [message for message in messages(written(code)) if isinstance(message.id, str) and message.string]
    translations = {message.string for message in single}
    return {message.id for message in single if message.id not in translations and not fixed(message.id)}


PEOPLES = {"sums", "letters", "waiting"}
"""Names of the runs of the prepared installation."""


@pytest.mark.parametrize("code", LANGUAGES)
def test_a_page_in_another_language_shows_no_english_text_of_the_catalogue(code: str, prepared: Prepared) -> None:
    english = english_texts(code) - PEOPLES
    visitor = client()
    left: dict[str, list[str]] = {}
    for page in pages(prepared):
        in_english = visitor.get(page).text
        answer = visitor.get(page, headers={"Cookie": f"lathe-language={code}"})
        assert answer.status_code in (200, 404), page
        assert f'<html lang="{code}"' in answer.text and '<html lang="en"' in in_english
        shown = {" ".join(text.split()) for text in Shown(answer.text).texts}
        assert english & {" ".join(text.split()) for text in Shown(in_english).texts}, (
            f"{page} has no text of the catalogue"
        )
        if found := sorted(shown & english):
            left[page] = found
    assert left == {}


@pytest.mark.parametrize("code", LANGUAGES)
def test_rest_is_english_in_every_language(code: str, prepared: Prepared) -> None:
    visitor = client()
    for path in (f"/api/runs/{prepared.failed}", f"/api/sweeps/{prepared.sweep}", "/api/settings", "/api/runs/none"):
        with_cookie = visitor.get(path, headers={"Cookie": f"lathe-language={code}"})
        assert with_cookie.json() == visitor.get(path).json()
    listed = cast("list[str]", sorted(texts.LANGUAGES))
    assert "" in listed and code in listed


def test_a_wording_with_two_meanings_has_a_translation_for_each() -> None:
    texts.use("de")
    try:
        assert (texts._("Share"), texts.pgettext("verb", "Share")) == ("Anteil", "Teilen")
        assert (texts._("Saved"), texts.pgettext("stored", "Saved")) == ("Gespart", "Gespeichert")
    finally:
        texts.use("")
    assert texts.pgettext("verb", "Share") == "Share"


def test_every_phase_of_a_run_and_what_is_missing_of_its_result_are_in_the_catalogue() -> None:
    named = {*phases.declared(), *(stage.phase for stage in (*STAGES, PACKING)), *MISSING.values(), *Status}
    assert named - set(STATES) == set()
