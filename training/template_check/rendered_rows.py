"""Rows of a data set, rendered as a run does it: some of the first with their tokens, and every row, as far as the time allows."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from training.chat.reasoning import FIELDS
from training.chat.rendering_settings import MARKS, ChatSettings, answer_weights, with_row_weight
from training.chat.template import TemplateLimit
from training.config.run_config import RunConfig
from training.data.example import EmptyRow, Example, Message, Row
from training.data.files.formats import file_format
from training.data.files.readers import read_rows
from training.data.rows import reader
from training.data.usual_columns import JUDGING, unused_columns
from training.errors import DataError
from training.tokens.coverage import GapCounts
from training.tokens.encoding import Encoder, token_span
from training.tokens.parts import PartRenderer
from training.tokens.rendered import Pieces, Rendered, Span
from training.tokens.rendering import Renderer

READ_ROWS = 400
CHECKED_ROWS = 64


@dataclass(frozen=True)
class RenderedAnswer:
    """An assistant message, its loss weight, and its pieces with loss in characters and in tokens; empty if the template omits or
    rewrites it. `tokens` is from the first token of its pieces to the last; None without any."""

    message: Message
    weight: float
    pieces: Pieces
    token_pieces: tuple[Span, ...]

    @property
    def tokens(self) -> Span | None:
        return (self.token_pieces[0][0], self.token_pieces[-1][1]) if self.token_pieces else None

    def text(self, row: str) -> str:
        """The text of its pieces."""
        return "".join(row[first:end] for first, end in self.pieces)


@dataclass(frozen=True)
class SampleRow:
    """A row, from 1: its text, its tokens with their loss weights, and its answers.

    `prompt` is the text before the last answer, `generation` what the template writes at inference in its place; None for rows
    without a chat or a template.
    """

    number: int
    example: Example
    text: str
    encoding: Encoding
    ids: list[int]
    weights: list[float]
    answers: list[RenderedAnswer]
    templated: bool
    prompt: str | None = None
    generation: str | None = None

    @property
    def messages(self) -> list[Message]:
        return self.example.messages or []

    @cached_property
    def trained(self) -> list[RenderedAnswer]:
        """The answers that carry loss."""
        return [answer for answer in self.answers if answer.weight and answer.tokens]


def _answer(message: Message, weight: float, pieces: Pieces, encoding: Encoding, text: str) -> RenderedAnswer:
    spans = [token_span(encoding, piece, text) for piece in pieces]
    return RenderedAnswer(message, weight, pieces, tuple(span for span in spans if span))


class RowSampler:
    """Renders rows with a tokenizer and the settings of a run."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: ChatSettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self._renderer, self._encoder = Renderer(tokenizer, settings), Encoder(tokenizer)

    def row(self, number: int, example: Example) -> SampleRow:
        """The rendered row. Raises DataError if the template cannot render it, or a weight has a wrong value."""
        rendered = self._renderer.render(example)
        (encoding,) = self._encoder.encode([rendered])
        assert encoding is not None
        encoded = self._encoder.collect([rendered], [encoding])
        weights = [0.0] * len(encoded.tokens)
        for (_, first, end), weight in zip(encoded.spans.tolist(), encoded.weights.tolist(), strict=True):
            weights[first:end] = [weight] * (end - first)
        ids = [int(token) for token in encoded.tokens]
        answers = self._answers(example, encoding, rendered)
        prompt, generation = self._prompts(example) if rendered.templated and example.answered else (None, None)
        return SampleRow(
            number, example, rendered.text, encoding, ids, weights, answers, rendered.templated, prompt, generation
        )

    def _answers(self, example: Example, encoding: Encoding, rendered: Rendered) -> list[RenderedAnswer]:
        if example.messages is None or not example.answered:
            return []
        messages = [message for message in example.messages if message["role"] == "assistant"]
        weights = answer_weights(example.messages, self._settings, example.weight)
        return [
            _answer(message, weight, pieces or (), encoding, rendered.text)
            for message, weight, pieces in zip(messages, weights, rendered.answers, strict=True)
        ]

    def _prompts(self, example: Example) -> tuple[str | None, str | None]:
        """The text before the last answer in training, and at inference."""
        messages = example.messages or []
        last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
        if not last:
            return None, None
        text, spans = self._renderer.turns(messages[: last + 1], example.tools)
        if not (pieces := spans[-1]):
            return None, None
        return text[: pieces[0][0]], self._renderer.generation_prompt(messages[:last], example.tools)


def sample(path: Path, columns: str | None, settings: ChatSettings) -> Iterator[tuple[int, Example | DataError]]:
    """Yields the number (from 1) and the example of some of the first rows, or why a row cannot be read. Rows that training skips
    are left out. Raises DataError if the file cannot be read, or `columns` is not a mapping."""
    read = reader(columns)
    found: list[tuple[int, Example | DataError]] = []
    for number, row in enumerate(islice(read_rows(path, file_format(path, path.name)), READ_ROWS), start=1):
        try:
            example = with_row_weight(read(row)[1], row, settings)
        except EmptyRow:
            continue
        except DataError as error:
            found.append((number, error))
        else:
            if example.label is not False:
                found.append((number, example))
    step = max(1, len(found) // CHECKED_ROWS)
    yield from found[::step][:CHECKED_ROWS]


_READ_KEYS = frozenset({"role", "content", "tool_calls", "tool_call_id", "id", *FIELDS, *MARKS})
"""Keys of a message that Lathe reads or that check a call's result; those of reasoning and of loss have findings of their own."""


class MessageKeys:
    """Counts the rows with keys of messages that neither Lathe nor the chat template reads: without them the rendering is the
    same."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: ChatSettings) -> None:
        self._renderer, self._own = Renderer(tokenizer, settings), frozenset(settings.own_fields)
        self._read, self._tries = set[str](), Counter[str]()
        self._rows = Counter[str]()

    def add(self, example: Example) -> None:
        """Counts the keys of a row. Raises DataError if the template cannot render it."""
        messages = example.messages or []
        keys = {key for message in messages for key in self._keys(message)} - self._read
        for key in keys:
            if self._tries[key] < _TRIES and self._renderer.templates:
                self._tries[key] += 1
                without = [{name: value for name, value in one.items() if name != key} for one in messages]
                texts = {self._renderer.turns(given, example.tools)[0] for given in (messages, without)}
                self._read |= {key} if len(texts) > 1 else set()
        self._rows.update(keys)

    def _keys(self, message: Message) -> Iterator[str]:
        for key in message.keys() - _READ_KEYS - self._own:
            if not (key == "name" and message["role"] == "tool"):  # which repeats that of the call
                yield key

    @property
    def unread(self) -> Counter[str]:
        """The rows with each key that is not read."""
        return Counter({key: rows for key, rows in self._rows.items() if key not in self._read})


_TRIES = 8  # rows in which a key is left out to see whether the template reads it


def marked(rows: list[Row], names: tuple[str, ...]) -> str | None:
    """The first of these fields with which a message says that it carries no loss."""
    return next((name for row in rows for name in names if row.get(name) in (False, 0) and name in row), None)


_SHORT = 48  # characters
SECONDS = 10.0
"""The CPU time after which no further row is rendered: about 100,000 short conversations. A run checks the others itself."""


@dataclass
class EveryRow:
    """The number of rows rendered, what is missing in them, and the rows (from 1) that cannot be read or rendered.

    `unused` has the columns with texts that nothing uses, with the number of rows that have such a text; `judging` those that say
    whether an answer is good; `keys` the keys of messages that nothing reads.
    """

    rendered: int = 0
    complete: bool = True
    gaps: GapCounts = field(default_factory=GapCounts)
    unreadable: list[tuple[int, DataError]] = field(default_factory=list)
    unused: Counter[str] = field(default_factory=Counter)
    judging: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)


def render_every_row(
    config: RunConfig, file: Path, columns: str | None, tokenizer: PreTrainedTokenizerBase, seconds: float = SECONDS
) -> EveryRow:
    """Renders the rows of a file as the run will, for at most `seconds` of CPU time. Raises DataError if the file cannot be read,
    or `columns` is not a mapping."""
    settings, read, found = ChatSettings.of(config), reader(columns), EveryRow()
    own = {config.weight_field, config.loss_field, config.stratify_by, config.group_by}
    keys = MessageKeys(tokenizer, settings)
    parts = [PartRenderer(tokenizer, part, settings) for part in config.task.traits.texts]
    end = time.process_time() + seconds
    for number, row in enumerate(read_rows(file, file_format(file, file.name)), start=1):
        try:
            row_format, example = read(row)
            example = with_row_weight(example, row, settings)
            unused = unused_columns(row, (row_format,), columns)
            found.unused.update(name for name in unused if name not in own and _has_text(row[name]))
            judged = name_in(unused, JUDGING) if example.label is None and example.answered else None
            found.judging.update([judged] if judged and judged not in own and row[judged] is not None else [])
            if example.label is not False or config.task.traits.labels_answers:
                found.gaps.add(number, [gap for part in parts for gap in part.missing(example, part.render(example))])
                found.rendered += 1
                keys.add(example)
                found.keys = keys.unread
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


def name_in(columns: Iterable[str], names: Collection[str]) -> str | None:
    """The first of the columns with one of these names, in any case."""
    return next((column for column in columns if column.lower() in names), None)


def _has_text(value: Any) -> bool:
    """True for a text that is more than an identifier or a category, and for lists and objects with one."""
    if isinstance(value, str):
        return len(value) > _SHORT and (" " in value or not value.isascii())
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_text, inner))
