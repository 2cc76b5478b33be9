"""The texts of Gradio's components in the language of the request.

Gradio makes its components once, in English, and sends them with each page as JSON; here the texts in it are translated on their
way to the browser. A text with a number, a name or a list in it is made again for the language (`made`). Values that handlers send
later are translated where they are made, with `_`.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from html import unescape
from typing import Any

from markupsafe import escape

from app import texts

Translate = Callable[[str], str]
_CONFIG = re.compile(r"(<script[^>]*>window\.gradio_config = )(.*?)(;</script>)", re.DOTALL)
_PROPS = ("label", "info", "placeholder", "title")
_SHOWN_VALUES = ("button", "uploadbutton", "downloadbutton", "html", "markdown", "code")
"""The components whose value is a text of ours and not a person's."""
_MARKUP = re.compile(r'(<(?:code|kbd|pre)\b.*?</(?:code|kbd|pre)>|<(?:[^"<>]|"[^"]*")*>)', re.DOTALL)
"""A tag, or the whole of an element whose text is typed as it is."""
_ATTRIBUTE = re.compile(r'( (?:title|alt|aria-label|placeholder)=")([^"]+)(?=")')
_MADE: dict[str, Callable[[], str]] = {}


def made(make: Callable[[], str]) -> str:
    """The text of a component that is made with `_`: in English now, and again for each language."""
    english = make()
    _MADE[english] = make
    return english


def translated(page: str) -> str:
    """A page of Gradio with its components' texts in the language of the request."""
    return _translated(page, texts.language()) if texts.language() else page


@lru_cache(maxsize=16)
def _translated(page: str, _: str) -> str:
    return _CONFIG.sub(lambda script: script[1] + _config(script[2]) + script[3], page, count=1)


def _config(source: str) -> str:
    config = json.loads(source)
    for component in config["components"]:
        translate(component, texts._)
    written = json.dumps(config, separators=(",", ":"))
    return written.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026").replace("'", "\\u0027")


def texts_of(config: dict[str, Any]) -> Iterator[str]:
    """The texts of the components in Gradio's configuration, for the catalogue."""
    seen: list[str] = []

    def collect(english: str) -> str:
        seen.append(english)
        return english

    for component in config["components"]:
        translate(component, collect)
    yield from seen


def translate(component: dict[str, Any], translation: Translate) -> None:
    """Replaces the texts of one component: label, help, placeholder, labels of choices, and what a button or our own HTML shows."""
    props = component["props"]
    for name in _PROPS:
        if isinstance(props.get(name), str):
            props[name] = _sentence(props[name], translation)
    value = props.get("value")
    if component["type"] in _SHOWN_VALUES and isinstance(value, str):
        props["value"] = _MADE[value]() if value in _MADE else _markup(value, translation)
    if isinstance(choices := props.get("choices"), list):
        props["choices"] = [_choice(choice, translation) for choice in choices]


def _choice(choice: Any, translation: Translate) -> Any:
    label, value = choice if isinstance(choice, list | tuple) else (choice, choice)
    return [_sentence(label, translation) if isinstance(label, str) else label, value]


def _sentence(english: str, translation: Translate) -> str:
    """`english` without the space around it, if it has a letter."""
    if english in _MADE:
        return _MADE[english]()
    core = english.strip()
    return english.replace(core, translation(core)) if any(sign.isalpha() for sign in core) else english


def _markup(html: str, translation: Translate) -> str:
    """HTML with its text and the attributes that a person reads translated."""

    def replaced(text: str) -> str:
        return str(escape(_sentence(unescape(text), translation)))

    pieces = _MARKUP.split(html)
    pieces[::2] = [replaced(text) for text in pieces[::2]]
    pieces[1::2] = [_ATTRIBUTE.sub(lambda match: match[1] + replaced(match[2]), tag) for tag in pieces[1::2]]
    return "".join(pieces)
