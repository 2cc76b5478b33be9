"""Finds images, audio and video in rows. Lathe trains on text: without the pictures, a placeholder is a word without meaning."""

import re
from collections.abc import Iterable

from training.data.example import Example, Row
from training.errors import DataError

_COLUMNS = {
    name: kind for kind in ("image", "video", "audio") for name in (kind, f"{kind}s", f"{kind}_path", f"{kind}_url")
}
# A word in angle brackets counts only where multimodal data sets put it, since text may speak of HTML's <video>.
_PLACEHOLDER = re.compile(
    r"\A\s*<(image|video|audio)>|^[ \t]*<(image|video|audio)>[ \t]*$|<(image|video|audio)>\s*\Z"
    r"|<\|(image|video|audio)_?(?:pad|bos|1)?\|>|<\|(vision)_start\|>|<(image)_placeholder>|\[(IMG)\]",
    re.MULTILINE,
)
_FIX = "Lathe trains on text: remove these rows, or train them with a program for multimodal models."


def refuse_media_columns(row: Row) -> None:
    """Checks that no column of the row holds images, audio or video.

    Raises:
        DataError: one does.
    """
    for name in _COLUMNS.keys() & row.keys():
        if row[name]:
            raise DataError(f"holds {_COLUMNS[name]} data.", _FIX, field=name)


def refuse_placeholders(example: Example) -> None:
    """Checks that no prompt of the example contains a placeholder for an image, audio or video.

    Raises:
        DataError: one does.
    """
    for text in _asked(example):
        if ("<" in text or "[" in text) and (found := _PLACEHOLDER.search(text)):
            raise DataError(f"contains a placeholder for an image, audio or video ({found[0].strip()}).", _FIX)


def _asked(example: Example) -> Iterable[str]:
    if example.messages is None:
        return (example.prompt,)
    return (message["content"] for message in example.messages if message["role"] == "user")
