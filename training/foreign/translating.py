"""`python -m training.foreign.translating` translates the texts on standard input, in a process with limits: parsing a text that
somebody sent can take seconds and gigabytes."""

import json
from typing import Any

from training.errors import answer_json
from training.foreign.translate import import_text, together


def answer(text: str) -> dict[str, Any]:
    """The translation, as JSON, of texts with their names. Paths in them are of no folder: no file is read."""
    return together([import_text(given, None, name) for name, given in json.loads(text)]).document()


if __name__ == "__main__":
    answer_json(answer)
