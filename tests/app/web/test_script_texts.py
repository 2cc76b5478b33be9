"""The texts of static/*.js: each is in the catalogue, and reaches the browser in the language of the page."""

import json
import re
from collections.abc import Iterator
from html import unescape

import pytest
import web
from babel.messages.jslexer import tokenize

from app import texts
from app.web.assets import STATIC
from tools.catalogue import KEYWORDS

# Babel's extraction of texts uses the same tokens; constraints.txt has the version.
pytestmark = pytest.mark.filterwarnings("ignore:.babel.messages.jslexer.tokenize:DeprecationWarning")
SCRIPTS = sorted(STATIC.glob("*.js"))
MARKED = {*KEYWORDS, "lathe.gettext", "lathe.ngettext"}
SENTENCE = re.compile(r"^[A-Z][a-z]+[a-z0-9 ]*$|[A-Za-z]{2,},? [a-z]{2,}\b")
NOT_SHOWN = {
    "use strict",
    *(
        "Content-Type",
        "Notification",
        "EventSource",
        "AbortError",
        "Enter",
        "Escape",
        "Tab",
        "ArrowLeft",
        "ArrowRight",
        "ArrowUp",
    ),
    *("ArrowDown", "PageDown", "PageUp"),  # names in the browser's interfaces
    *("Lathe", "Traceback (most recent"),  # the product's name, and what Python writes
    "Off",  # the value of an option, whose label is in the catalogue
    "Connection to the server was lost",  # what Gradio says, and a page hides
    "stopped",  # the message of an error that is caught
}
"""Strings that look like a text and are none."""
NOT_SHOWN_LIKE = re.compile(
    r"^(button|note|panel|plot|log|menu|bar|status|faint|mono|said|share-said|tick)[\w -]*$|^(a|main|input|textarea)\b"
    r"|^\S*[\[\]{}<>=:;/\\_.#]\S*( .*)?$|px|system-ui|%"
)
"""Class names, selectors, fonts, addresses and styles."""


def strings(source: str) -> Iterator[tuple[int, str]]:
    """The strings of a script that no call of the catalogue has as an argument, each with its line."""
    before, depth = ["", ""], []  # of each open parenthesis whether it is of such a call
    for token in tokenize(source, jsx=False):
        if token.type == "operator" and token.value == "(":
            depth.append(before[-1] in MARKED)
        elif token.type == "operator" and token.value == ")" and depth:
            depth.pop()
        elif token.type in ("string", "template_string") and not (depth and depth[-1]):
            yield token.lineno, re.sub(r"\$\{.*?\}", " ", token.value[1:-1], flags=re.DOTALL).strip()
        if token.type not in ("linecomment", "multilinecomment"):
            before.append(token.value)


def outside(source: str) -> list[str]:
    """The texts of a script that are not in the catalogue, with their lines."""
    return [
        f"{line}: {text}"
        for line, text in strings(source)
        if SENTENCE.search(text) and text not in NOT_SHOWN and not NOT_SHOWN_LIKE.search(text)
    ]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_no_text_of_a_script_stands_outside_of_the_catalogue(script):
    assert not outside(script.read_text(encoding="utf-8"))


def test_a_text_that_is_not_marked_is_found():
    assert outside('note.textContent = "Not saved yet.";') == ["1: Not saved yet."]
    assert outside('button.title = `Hide ${name}`;\nbutton.append("Hide");') == ["1: Hide", "2: Hide"]
    assert outside("say(`${count} runs were deleted`)") == ["1: runs were deleted"]
    assert not outside('say(_("Not saved yet."), lathe.gettext("Hide"));')


def test_every_text_of_a_script_is_sent_to_the_browser_in_german():
    sent = web.client().get("/static/lathe/texts-de.js").text
    table = json.loads(sent[sent.index("texts: ") + len("texts: ") : sent.rindex("}")])
    assert table["{time} ago"] == "vor {time}"
    assert table["{number} run deleted."] == ["{number} Lauf gelöscht.", "{number} Läufe gelöscht."]
    assert table["Gradient norm"] == "Gradientennorm"
    assert table["finished"] == "fertig"


def test_the_script_in_the_page_has_its_own_texts():
    client = web.client()
    english, german = (client.get("/new", headers={"Cookie": f"lathe-language={code}"}).text for code in ("", "de"))
    assert "data-texts" not in english.partition("</head>")[0].replace("dataset.texts", "")
    found = re.search(r'<script nonce="[^"]*" data-texts="([^"]*)">', german)
    assert found is not None
    assert json.loads(unescape(found[1]))["The server does not answer."] == "Der Server antwortet nicht."
    assert set(json.loads(unescape(found[1]))) == set(texts.of_scripts("de", ("static/loading.js",)))
