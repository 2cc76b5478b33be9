"""Renders every row of a data set, as far as the time allows, and counts what is missing in its text."""

import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from training.chat.settings import ChatSettings, with_row_weight
from training.chat.template import TemplateLimit
from training.config.choices import Task
from training.config.run_config import RunConfig
from training.data.example import EmptyRow, Example
from training.data.files.formats import file_format
from training.data.files.readers import read_rows
from training.data.rows import reader
from training.data.usual_columns import unused_columns
from training.errors import DataError
from training.tokens.coverage import GapCounts
from training.tokens.parts import STORED_TEXTS, PartRenderer

_SHORT = 48  # characters
SECONDS = 10.0
"""The CPU time after which no further row is rendered: about 100,000 short conversations. A run checks the others itself."""


@dataclass
class EveryRow:
    """The number of rows rendered, what is missing in them, and the rows (from 1) that cannot be read or rendered.

    `unused` has the columns with texts that nothing uses, with the number of rows that have such a text.
    """

    rendered: int = 0
    complete: bool = True
    gaps: GapCounts = field(default_factory=GapCounts)
    unreadable: list[tuple[int, DataError]] = field(default_factory=list)
    unused: Counter[str] = field(default_factory=Counter)


def render_every_row(
    config: RunConfig, file: Path, columns: str | None, tokenizer: PreTrainedTokenizerBase, seconds: float = SECONDS
) -> EveryRow:
    """Renders the rows of a file as the run will, for at most `seconds` of CPU time.

    Raises:
        DataError: the file cannot be read, or `columns` is not a mapping.
    """
    settings, read, found = ChatSettings.of(config), reader(columns), EveryRow()
    own = {config.weight_field, config.loss_field, config.stratify_by}
    parts = [PartRenderer(tokenizer, part, settings) for part in STORED_TEXTS[config.task]]
    end = time.process_time() + seconds
    for number, row in enumerate(read_rows(file, file_format(file, file.name)), start=1):
        try:
            row_format, example = read(row)
            example = with_row_weight(example, row, settings)
            unused = unused_columns(row, (row_format,), columns)
            found.unused.update(name for name in unused if name not in own and _has_text(row[name]))
            if example.label is not False or config.task is Task.KTO:
                _render(example, number, parts, found)
        except EmptyRow:
            continue
        except DataError as error:
            found.unreadable.append((number, error))
            if isinstance(error, TemplateLimit):
                return found
        if time.process_time() > end:
            found.complete = False
            return found
    return found


def _render(example: Example, number: int, parts: list[PartRenderer], found: EveryRow) -> None:
    found.gaps.add(number, [gap for part in parts for gap in part.missing(example, part.render(example))])
    found.rendered += 1


def _has_text(value: Any) -> bool:
    """True for a text that is more than an identifier or a category, and for lists and objects with one."""
    if isinstance(value, str):
        return len(value) > _SHORT and (" " in value or not value.isascii())
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_text, inner))
