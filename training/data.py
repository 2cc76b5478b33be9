"""From rows to tokens: what the model sees, and which tokens carry the loss."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import torch
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from training.config import RunConfig
from training.failure import DataError
from training.rows import read_examples
from training.shapes import Example, Message

IGNORED = -100  # the label that cross-entropy leaves out
_PAD_MULTIPLE = 8
_CHUNK_ROWS = 512
_CLOSING_CHARACTERS = 16  # how far behind an answer its end token may stand
# `row` is the row's place in its file, from 0.
_SCHEMA = pa.schema([("row", pa.int64()), ("input_ids", pa.list_(pa.int32())), ("labels", pa.list_(pa.int32()))])

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Tokenized:
    """A row as tokens. `labels` repeat the token where it carries loss and are IGNORED elsewhere; equal lengths."""

    input_ids: list[int]
    labels: list[int]

    @property
    def trains(self) -> bool:
        """Whether any token carries loss. The first never does: nothing comes before it to predict it from."""
        return any(label != IGNORED for label in self.labels[1:])


@dataclass(frozen=True)
class TokenizedFile:
    """The rows of one file that train, and how many were cut off at the end or left out for having nothing to learn."""

    table: pa.Table
    truncated_rows: int
    skipped_rows: int


class TokenDataset(Dataset[dict[str, list[int]]]):
    """Rows of an Arrow table, mapped from disk."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {name: self._table[name][index].as_py() for name in ("input_ids", "labels")}


class Collator:
    """Pads rows to the longest of a batch: input_ids, attention_mask and labels of shape (rows, length)."""

    def __init__(self, pad_token_id: int) -> None:
        self._pad = pad_token_id

    def __call__(self, rows: list[dict[str, list[int]]]) -> dict[str, torch.Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        length = -(-longest // _PAD_MULTIPLE) * _PAD_MULTIPLE
        shape = (len(rows), length)
        batch = {
            "input_ids": torch.full(shape, self._pad),
            "attention_mask": torch.zeros(shape, dtype=torch.long),
            "labels": torch.full(shape, IGNORED),
        }
        for index, row in enumerate(rows):
            size = len(row["input_ids"])
            batch["input_ids"][index, :size] = torch.tensor(row["input_ids"])
            batch["attention_mask"][index, :size] = 1
            batch["labels"][index, :size] = torch.tensor(row["labels"])
        return batch


def tokenize_file(
    source: Path, target: Path, tokenizer: PreTrainedTokenizerBase, config: RunConfig, progress: Progress
) -> None:
    """Tokenizes every row of `source` into the Arrow file `target` (written aside and renamed, so that it is whole or absent).

    Raises:
        DataError: a row cannot be read, or no row has anything to learn at this maximum length.
    """
    temporary = target.with_suffix(".tmp")
    counts = {"truncated_rows": 0, "skipped_rows": 0, "rows": 0}
    with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, _SCHEMA) as writer:
        for chunk in _chunks(read_examples(source)):
            rows = tokenize(chunk, tokenizer, config)
            kept = [(number, row.cut) for number, row in enumerate(rows, counts["rows"]) if row.cut.trains]
            counts["rows"] += len(rows)
            counts["skipped_rows"] += len(rows) - len(kept)
            counts["truncated_rows"] += sum(row.truncated for row in rows)
            columns = [
                [number for number, _ in kept],
                [cut.input_ids for _, cut in kept],
                [cut.labels for _, cut in kept],
            ]
            arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
            writer.write_batch(pa.record_batch(arrays, schema=_SCHEMA))
            progress(counts["rows"])
    if counts["skipped_rows"] == counts["rows"]:
        temporary.unlink()
        raise DataError(
            f"has no row with an answer left within max_length {config.max_length}.",
            "Raise max_length.",
            file=source.name,
        )
    target.with_suffix(".counts").write_text(f"{counts['truncated_rows']} {counts['skipped_rows']}")
    temporary.rename(target)


def open_tokens(target: Path) -> TokenizedFile:
    """Maps a file that `tokenize_file` wrote."""
    truncated, skipped = map(int, target.with_suffix(".counts").read_text().split())
    table = pa.ipc.open_file(pa.memory_map(str(target))).read_all()
    return TokenizedFile(table, truncated, skipped)


@dataclass(frozen=True)
class Fitted:
    """A row cut to the maximum length."""

    cut: Tokenized
    truncated: bool


def tokenize(examples: list[Example], tokenizer: PreTrainedTokenizerBase, config: RunConfig) -> list[Fitted]:
    """Rows of one shape as tokens, each cut at its end to `config.max_length`."""
    rendered = [render(example, tokenizer) for example in examples]
    templated = examples[0].messages is not None and tokenizer.chat_template is not None
    texts = [text for text, _ in rendered]
    # A chat template writes its own special tokens, and the end of the last turn among them.
    encoded = tokenizer(texts, add_special_tokens=not templated, return_offsets_mapping=True)
    end = None if templated else tokenizer.eos_token_id
    return [
        _fit(ids, offsets, spans, end, config)
        for ids, offsets, (_, spans) in zip(encoded["input_ids"], encoded["offset_mapping"], rendered, strict=True)
    ]


def _fit(
    ids: list[int], offsets: list[tuple[int, int]], spans: list[tuple[int, int]], end: int | None, config: RunConfig
) -> Fitted:
    every = config.train_on_prompt
    labels = [token if every or _within(offset, spans) else IGNORED for token, offset in zip(ids, offsets, strict=True)]
    if end is not None and ids[-1:] != [end]:
        ids, labels = [*ids, end], [*labels, end]
    limit = config.max_length
    return Fitted(Tokenized(ids[:limit], labels[:limit]), truncated=len(ids) > limit)


def render(example: Example, tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[tuple[int, int]]]:
    """The text the model sees, and the character spans [start, end) of the answers in it."""
    if example.messages is None:
        return example.prompt + example.answer, [(len(example.prompt), len(example.prompt) + len(example.answer))]
    if tokenizer.chat_template is None:
        return _render_plainly(example.messages)
    return _render_chat(example.messages, tokenizer)


def prompt_of(example: Example, tokenizer: PreTrainedTokenizerBase) -> tuple[str, str]:
    """What the model is given to answer a row, and the answer expected: the last one of a conversation."""
    if example.messages is None:
        return example.prompt, example.answer
    last = max(index for index, message in enumerate(example.messages) if message["role"] == "assistant")
    before, answer = example.messages[:last], example.messages[last]["content"]
    if tokenizer.chat_template is None:
        return _render_plainly(before)[0] + _PLAIN_HEADINGS["assistant"], answer
    return str(tokenizer.apply_chat_template(before, tokenize=False, add_generation_prompt=True)), answer


def _render_chat(messages: list[Message], tokenizer: PreTrainedTokenizerBase) -> tuple[str, list[tuple[int, int]]]:
    text = _apply(messages, tokenizer)
    spans, cursor = [], 0
    for index, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        span = _span_by_prefix(messages, index, text, tokenizer) or _span_by_content(
            message["content"], text, cursor, tokenizer
        )
        if span:
            spans.append(span)
            cursor = span[1]
    return text, spans


def _span_by_prefix(
    messages: list[Message], index: int, text: str, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, int] | None:
    """From the generation prompt's end to the turn's end, where the template renders a conversation piece by piece."""
    before = _apply(messages[:index], tokenizer, add_generation_prompt=True) if index else ""
    through = _apply(messages[: index + 1], tokenizer)
    return (len(before), len(through)) if text.startswith(through) and through.startswith(before) else None


def _span_by_content(
    content: str, text: str, cursor: int, tokenizer: PreTrainedTokenizerBase
) -> tuple[int, int] | None:
    """Templates that rewrite earlier turns: the answer where it stands in the text, with the token that ends the turn."""
    start = text.find(content.strip(), cursor)
    if start < 0:
        return None
    end = start + len(content.strip())
    eos = str(tokenizer.eos_token or "")
    closed = text.find(eos, end, end + _CLOSING_CHARACTERS + len(eos)) if eos else -1
    return (start, closed + len(eos)) if closed >= 0 else (start, end)


def _apply(messages: list[Message], tokenizer: PreTrainedTokenizerBase, *, add_generation_prompt: bool = False) -> str:
    try:
        return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=add_generation_prompt))
    except Exception as error:  # a template is a program and raises what it likes
        raise DataError(
            f"cannot be rendered by the model's chat template: {error}.", "Change the roles or their order."
        ) from error


# For a model without a chat template: headings in plain words, each answer ended by a blank line.
_PLAIN_HEADINGS = {"system": "", "user": "### Instruction:\n", "assistant": "### Response:\n", "tool": "### Tool:\n"}


def _render_plainly(messages: list[Message]) -> tuple[str, list[tuple[int, int]]]:
    text, spans = "", []
    for message in messages:
        text += _PLAIN_HEADINGS[message["role"]]
        if message["role"] == "assistant":
            spans.append((len(text), len(text) + len(message["content"])))
        text += message["content"] + "\n\n"
    return text.removesuffix("\n\n") if messages and messages[-1]["role"] == "assistant" else text, spans


def _within(offset: tuple[int, int], spans: list[tuple[int, int]]) -> bool:
    """Whether a token's characters lie in an answer; a token that straddles the start belongs to the prompt."""
    start, end = offset
    return end > start and any(start >= first and end <= last for first, last in spans)


def _chunks(examples: Iterator[Example]) -> Iterator[list[Example]]:
    chunk: list[Example] = []
    for example in examples:
        chunk.append(example)
        if len(chunk) == _CHUNK_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


def split(table: pa.Table, held_out: int | float, seed: int) -> tuple[pa.Table, pa.Table | None]:
    """Training and held-out rows: a share below 1 or a number of rows, drawn by `seed`, the same on every rank.

    Raises:
        DataError: nothing would be left to train on.
    """
    rows = table.num_rows
    count = round(rows * held_out) if held_out < 1 else int(held_out)
    if held_out and not count:
        count = min(1, rows - 1)
    if count >= rows:
        raise DataError(
            f"has {rows} rows that train, and eval_split holds out {count}.", "Lower eval_split.", field="eval_split"
        )
    if not count:
        return table, None
    order = torch.randperm(rows, generator=torch.Generator().manual_seed(seed)).tolist()
    return table.take(sorted(order[count:])), table.take(sorted(order[:count]))
