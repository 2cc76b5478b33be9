"""The faults of tokenizer, model and settings together, over all checked rows."""

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from training.config.choices import Method
from training.config.name_values import as_names
from training.config.run_config import RunConfig
from training.model_info.config_json import ModelError, dimensions_of, local_folder, read_config, text_config
from training.model_info.end_tokens import end_ids
from training.template_check.findings import ERROR, WARNING, Fault, Finding
from training.template_check.rendered_rows import SampleRow
from training.template_check.row_faults import Subject

_PADDING = 1024  # rows of a head that are usual beyond the tokenizer's ids: sizes are rounded up
_EMBEDDINGS = ("embed", "wte", "word_embeddings", "shared", "lm_head")
_TABLES = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "tok_embeddings.weight")
_LEARNED_POSITIONS = ("gpt2", "opt", "gpt_neo", "biogpt", "ctrl", "openai-gpt", "xglm", "gpt_bigcode")
_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True)
class ModelSide:
    """What the model adds: the rows of its head (None if unknown), the tokens at which it stops, its folder, whether the run
    trains its embeddings, its longest input (None if unknown), and whether each position has an embedding."""

    head: int | None
    end_ids: frozenset[int]
    folder: Path | None
    trains_embeddings: bool
    positions: int | None = None
    learned_positions: bool = False


def model_side(model: str, config: Mapping[str, Any]) -> ModelSide:
    """Reads a model's folder; of a hub model nothing is known here. `config` are the settings of the run."""
    folder = local_folder(model)
    trains = trains_embeddings(RunConfig.model_validate(config))
    if folder is None:
        return ModelSide(None, frozenset(), None, trains)
    try:
        values = read_config(model)
    except ModelError:
        values = {}
    head = text_config(values).get("vocab_size")
    found = dimensions_of(values)
    learned = values.get("model_type") in _LEARNED_POSITIONS
    return ModelSide(
        head if isinstance(head, int) else None,
        end_ids(model),
        folder,
        trains,
        found.positions if found else None,
        learned,
    )


def trains_embeddings(config: RunConfig) -> bool:
    """True if the run trains the embeddings of all tokens."""
    if config.method is Method.FULL:
        return not config.trainable_layers or _names_embeddings(config.modules_to_save)
    if config.method is Method.TRAINABLE_TOKENS:
        return True
    return _names_embeddings(config.modules_to_save) or _names_embeddings(config.target_modules)


def model_findings(
    rows: list[SampleRow], tokenizer: PreTrainedTokenizerBase, subject: Subject, side: ModelSide
) -> Iterator[Finding]:
    """The findings of each fault."""
    yield from _padding(rows, tokenizer)
    yield from _head(tokenizer, side)
    yield from _untrained(rows, tokenizer, side)
    yield from _cut(rows, subject)
    yield from _beyond_positions(rows, subject, side)


def _padding(rows: list[SampleRow], tokenizer: PreTrainedTokenizerBase) -> Iterator[Finding]:
    pad = tokenizer.pad_token_id
    ends = {row.ids[answer.tokens[1] - 1] for row in rows for answer in row.trained if answer.tokens}
    if pad is not None and pad in {*ends, tokenizer.eos_token_id}:
        message = (
            f"The padding token {tokenizer.pad_token} is also the end token. Lathe masks padding by its place, so the end token "
            "keeps its loss here; programs that mask every padding token would mask it too."
        )
        fix = "Set pad_token in tokenizer_config.json to a token of its own."
        yield Finding(
            Fault.PAD_IS_END, WARNING, message, fix, tokens=(str(tokenizer.pad_token),), rows=1, setting="model"
        )


def _head(tokenizer: PreTrainedTokenizerBase, side: ModelSide) -> Iterator[Finding]:
    missing = side.head - len(tokenizer) if side.head else 0
    if missing > max(_PADDING, (side.head or 0) // 20):
        message = (
            f"The tokenizer has {len(tokenizer):,} ids and the model's head {side.head:,} rows: {missing:,} rows stand for no "
            "token. The tokenizer is probably that of another model."
        )
        fix = "Copy the tokenizer files of the original model into the folder."
        yield Finding(Fault.FEWER_IDS, WARNING, message, fix, setting="model")


def _untrained(rows: list[SampleRow], tokenizer: PreTrainedTokenizerBase, side: ModelSide) -> Iterator[Finding]:
    """Tokens in the rows whose embeddings are new or were never trained, in a run that does not train embeddings."""
    if side.trains_embeddings:
        return
    used = {token for row in rows for token in row.ids}
    new = sorted(token for token in used if side.head is not None and token >= side.head)
    special = {token for token in tokenizer.added_tokens_decoder if token in used and token not in new}
    empty = untrained_rows(side.folder, sorted(special)) if side.folder else []
    if not new and not empty:
        return
    which = tuple(tokenizer.decode([token]) for token in [*new, *empty][:8])
    why = (
        f"beyond the {side.head:,} rows of the model's embeddings"
        if new
        else "whose embeddings are zero or all the same"
    )
    message = f"The rows have {len(new) + len(empty)} added tokens {why}, and the run does not train embeddings."
    fix = "Set modules_to_save to embed_tokens, lm_head, or use a template with tokens that the model knows."
    number = next((row.number for row in rows if {*new, *empty} & set(row.ids)), None)
    changes = {"modules_to_save": "embed_tokens, lm_head"}
    yield Finding(
        Fault.UNTRAINED_TOKENS, ERROR, message, fix, number, tokens=which, setting="modules_to_save", changes=changes
    )


def _cut(rows: list[SampleRow], subject: Subject) -> Iterator[Finding]:
    """Rows of which `max_length` cuts the end token off, and those of which it cuts off the whole answer."""
    limit = subject.max_length
    places = [(row, [place for place, weight in enumerate(row.weights) if weight]) for row in rows]
    trained = [(row, found[0], found[-1] + 1) for row, found in places if found]
    cut = [(row, end) for row, _, end in trained if end > limit]
    if not cut:
        return
    unanswered = sum(start >= limit for _, start, _ in trained)
    longest = max(end for _, end in cut)
    everything = len(cut) == len(trained) and len(trained) > 1
    first, end = cut[0]
    message = f"max_length {limit:,} cuts the end token off {len(cut):,} of {len(trained):,} checked rows."
    if unanswered:
        message += f" Of {unanswered:,} it cuts off the whole answer, so they are not trained."
    fix = f"Raise max_length to {longest:,}, or shorten or remove these rows."
    yield Finding(
        Fault.END_CUT_OFF,
        ERROR if everything else WARNING,
        message,
        fix,
        first.number,
        tokens=subject.texts(first.ids[max(0, end - 3) : end]),
        setting="max_length",
        changes={"max_length": longest},
    )


def _beyond_positions(rows: list[SampleRow], subject: Subject, side: ModelSide) -> Iterator[Finding]:
    limit = side.positions or 0
    longer = [row for row in rows if min(len(row.ids), subject.max_length) > limit > 0]
    if not longer:
        return
    longest = min(max(len(row.ids) for row in longer), subject.max_length)
    effect = "it has no embedding for later ones" if side.learned_positions else "it was not made for longer inputs"
    which = f"{len(longer):,} of {len(rows):,} checked rows, up to {longest:,} tokens,"
    message = f"{which} exceed the {limit:,} positions of the model: {effect}."
    yield Finding(
        Fault.BEYOND_POSITIONS,
        ERROR if side.learned_positions else WARNING,
        message,
        f"Set max_length to {limit:,}, which truncates these rows, or choose a model with more positions.",
        longer[0].number,
        setting="max_length",
        changes={"max_length": limit},
    )


def untrained_rows(folder: Path, ids: list[int]) -> list[int]:
    """Those of the tokens whose embedding in the safetensors files is zero, or the same as that of another one of them."""
    seen: dict[bytes, int] = {}
    found: set[int] = set()
    for token, row in _embeddings(folder, ids):
        if not any(row):
            found.add(token)
        elif row in seen:
            found |= {token, seen[row]}
        else:
            seen[row] = token
    return sorted(found)


def _embeddings(folder: Path, ids: list[int]) -> Iterator[tuple[int, bytes]]:
    """The bytes of some rows of the table of embeddings; nothing if it is not found or quantized."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with file.open("rb") as stream:
                (length,) = struct.unpack("<Q", stream.read(8))
                header = json.loads(stream.read(min(length, 100_000_000)))
                name = next((name for name in header if name.endswith(_TABLES)), None)
                if name is None or header[name]["dtype"] not in _BYTES or len(header[name]["shape"]) != 2:
                    continue
                count, width = header[name]["shape"]
                size = width * _BYTES[header[name]["dtype"]]
                for token in ids:
                    if token < count:
                        stream.seek(8 + length + header[name]["data_offsets"][0] + token * size)
                        yield token, stream.read(size)
                return
        except (OSError, ValueError, KeyError, struct.error):
            return


def _names_embeddings(text: str | None) -> bool:
    return any(part in name for name in as_names(text) for part in _EMBEDDINGS[:-1])
