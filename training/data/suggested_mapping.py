"""Suggests a column mapping for rows of unknown format: common pairs of names, each tried on the rows before it is named."""

from collections.abc import Sequence

from training.data.example import EmptyRow, Row
from training.data.mapping import apply, format_of, write_mapping
from training.data.to_examples import to_example
from training.errors import DataError

_ASKED = ("prompt", "question", "query", "instruction", "input", "problem", "user", "human", "request", "context")
_ANSWERED = ("completion", "answer", "answers.text.0", "answers.0.text", "answers.0", "response", "output", "reply", "solution",
             "assistant", "bot", "gpt", "answer_text")  # fmt: skip
_CHOSEN = (("chosen", "rejected"), ("chosen_response", "rejected_response"), ("response_chosen", "response_rejected"))
_SOURCES = (("article", "highlights"), ("article", "summary"), ("document", "summary"), ("dialogue", "summary"),
            ("text", "summary"), ("source_text", "target_text"), ("src", "tgt"), ("input_text", "target_text"))  # fmt: skip
_CLASSES = (
    ("sentence", "label"),
    ("review", "sentiment"),
    ("text", "category"),
    ("content", "label"),
    ("text", "labels"),
)
_TEXTS = ("content", "body", "document", "article", "markdown", "code", "story")
_CHATS = ("conversation.messages", "chat", "dialog", "dialogue", "turns", "messages.messages", "data")


def suggest(rows: Sequence[Row]) -> str | None:
    """A column mapping with which every one of the rows is an example; None if no common one fits."""
    return next((write_mapping(mapping) for mapping in _candidates(rows) if rows and _fits(mapping, rows)), None)


def _candidates(rows: Sequence[Row]) -> list[dict[str, str]]:
    pairs = [(asked, answered) for asked in _ASKED for answered in _ANSWERED]
    contexts = [
        {"instruction": asked, "input": more, "output": answered}
        for asked in ("question", "query", "instruction")
        for more in ("context", "passage", "document")
        for answered in _ANSWERED
        if any(more in row for row in rows)
    ]
    return [
        *({"messages": column} for column in _CHATS),
        *({"prompt": asked, "chosen": one, "rejected": other} for asked in _ASKED for one, other in _CHOSEN),
        {"chosen": "chosen_messages", "rejected": "rejected_messages"},
        *contexts,
        *({"prompt": asked, "completion": answered} for asked, answered in pairs),
        *({"source": source, "target": target} for source, target in _SOURCES),
        *({"text": text, "label": label} for text, label in _CLASSES),
        *({"text": column} for column in _TEXTS),
    ]


def _fits(mapping: dict[str, str], rows: Sequence[Row]) -> bool:
    try:
        for row in rows:
            mapped = apply(mapping, row)
            if mapped.keys() != mapping.keys():
                return False
            try:
                to_example(mapped, format_of(mapping))
            except EmptyRow:
                continue
    except DataError:
        return False
    return True
