"""Sample rows of a data set, rendered and tokenized as a run does it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

from training.chat.settings import ChatSettings, answer_weights, with_row_weight
from training.data.example import EmptyRow, Example, Message, Row
from training.data.files.formats import file_format
from training.data.files.readers import read_rows
from training.data.rows import reader
from training.errors import DataError
from training.tokens.encoding import Encoder, token_span
from training.tokens.rendering import Rendered, Renderer, Span

READ_ROWS = 400
CHECKED_ROWS = 64


@dataclass(frozen=True)
class Answer:
    """An assistant message, its loss weight, and its span with loss in characters and in tokens; None if the template omits or
    rewrites it."""

    message: Message
    weight: float
    span: Span | None
    tokens: Span | None


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
    answers: list[Answer]
    templated: bool
    prompt: str | None = None
    generation: str | None = None

    @property
    def messages(self) -> list[Message]:
        return self.example.messages or []

    @cached_property
    def trained(self) -> list[Answer]:
        """The answers that carry loss."""
        return [answer for answer in self.answers if answer.weight and answer.tokens]


class Sampler:
    """Renders rows with a tokenizer and the settings of a run."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, settings: ChatSettings) -> None:
        self._tokenizer, self._settings = tokenizer, settings
        self._renderer, self._encoder = Renderer(tokenizer, settings), Encoder(tokenizer)

    def row(self, number: int, example: Example) -> SampleRow:
        """The rendered row.

        Raises:
            DataError: the template cannot render it, or a weight has a wrong value.
        """
        rendered = self._renderer.render(example)
        (encoding,) = self._encoder.encode([rendered])
        assert encoding is not None
        encoded = self._encoder.collect([rendered], [encoding])
        weights = [0.0] * len(encoded.tokens)
        for (_, first, end), weight in zip(encoded.spans.tolist(), encoded.weights.tolist(), strict=True):
            weights[first:end] = [weight] * (end - first)
        ids = [int(token) for token in encoded.tokens]
        answers = self._answers(example, encoding, rendered)
        prompt, generation = self._prompts(example) if rendered.templated else (None, None)
        return SampleRow(
            number, example, rendered.text, encoding, ids, weights, answers, rendered.templated, prompt, generation
        )

    def _answers(self, example: Example, encoding: Encoding, rendered: Rendered) -> list[Answer]:
        if example.messages is None:
            return []
        messages = [message for message in example.messages if message["role"] == "assistant"]
        weights = answer_weights(example.messages, self._settings, example.weight)
        return [
            Answer(message, weight, span, token_span(encoding, span, rendered.text) if span else None)
            for message, weight, span in zip(messages, weights, rendered.answers, strict=True)
        ]

    def _prompts(self, example: Example) -> tuple[str | None, str | None]:
        """The text before the last answer in training, and at inference."""
        messages = example.messages or []
        last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
        if not last:
            return None, None
        text, spans = self._renderer.turns(messages[: last + 1], example.tools)
        if not spans[-1]:
            return None, None
        return text[: spans[-1][0]], self._renderer.generation_prompt(messages[:last], example.tools)


def sample(path: Path, columns: str | None, settings: ChatSettings) -> Iterator[tuple[int, Example | DataError]]:
    """Yields the number (from 1) and the example of some of the first rows, or why a row cannot be read. Rows that training skips
    are left out.

    Raises:
        DataError: the file cannot be read, or `columns` is not a mapping.
    """
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


def marked(rows: list[Row], names: tuple[str, ...]) -> str | None:
    """The first of these fields with which a message says that it carries no loss."""
    return next((name for row in rows for name in names if row.get(name) in (False, 0) and name in row), None)
