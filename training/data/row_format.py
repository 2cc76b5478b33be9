"""The formats of rows, and what the rows of each hold. No library."""

from enum import StrEnum, auto


class Rows(StrEnum):
    """What a row holds for training."""

    TEXTS = auto()
    ANSWERS = auto()
    PAIRS = auto()
    LABELED_ANSWERS = auto()
    PROMPTS = auto()


class RowFormat(StrEnum):
    ALPACA = "alpaca"
    SHAREGPT = "sharegpt"
    MESSAGES = "messages"
    TREE = "message tree"
    COMPLETION = "prompt/completion"
    PROMPT = "prompt"
    PREFERENCE = "preference"
    UNPAIRED = "unpaired preference"
    TEXT = "text"
    CLASSIFIED = "text/label"
    TRANSLATED = "source/target"

    @property
    def holds(self) -> Rows:
        return _HOLDS[self]


_HOLDS = {
    RowFormat.ALPACA: Rows.ANSWERS,
    RowFormat.SHAREGPT: Rows.ANSWERS,
    RowFormat.MESSAGES: Rows.ANSWERS,
    RowFormat.TREE: Rows.ANSWERS,
    RowFormat.COMPLETION: Rows.ANSWERS,
    RowFormat.PROMPT: Rows.PROMPTS,
    RowFormat.PREFERENCE: Rows.PAIRS,
    RowFormat.UNPAIRED: Rows.LABELED_ANSWERS,
    RowFormat.TEXT: Rows.TEXTS,
    RowFormat.CLASSIFIED: Rows.ANSWERS,
    RowFormat.TRANSLATED: Rows.ANSWERS,
}
