"""The chat template of a model or adapter folder, with the tokens that it refers to. Imports no torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.model_info.turns import Turns, turns_of
from training.regular_files import read_regular

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
_MOST_BYTES = 16 * 2**20
_TOKENIZER_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class ChatTemplate:
    """The template's text, the tokens that begin and end a text ("" if the tokenizer has none), and its file, if it has one."""

    text: str
    begin: str
    end: str
    file: Path | None

    def turns(self, options: dict[str, Any]) -> Turns | None:
        """The parts of the template with its own options; None if it does more than join texts."""
        return turns_of(self.text, self.begin, self.end, tuple(sorted(options.items())))


def chat_template_of(folder: Path) -> ChatTemplate | None:
    """The chat template in a folder; None if there is none."""
    values = _json(folder / _TOKENIZER_FILE)
    begin, end = (_content(values.get(name)) for name in ("bos_token", "eos_token"))
    jinja, listed = (folder / name for name in TEMPLATE_FILES)
    if jinja.is_file():
        return ChatTemplate(read_regular(jinja, _MOST_BYTES).decode(), begin, end, jinja)
    inside = _json(listed).get("chat_template") or values.get("chat_template")
    if isinstance(inside, list):  # named templates
        inside = next((one["template"] for one in inside if one.get("name") == "default"), None)
    return ChatTemplate(inside, begin, end, listed if listed.is_file() else None) if isinstance(inside, str) else None


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_regular(file, _MOST_BYTES))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")
