"""What training saw and the trained model answers, for a few held-out rows: the reference of every comparison.

Written at the end of training to PARITY_FOLDER: rows.json, and logits.safetensors with the largest logits after each prompt.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from transformers import PreTrainedTokenizerBase

from training.batches.views import IGNORED
from training.chat.rendering_settings import ChatSettings
from training.config.choices import LossOn, Precision, Strategy
from training.config.name_values import template_arguments
from training.config.run_config import RunConfig
from training.data.example import Example, Message, Row
from training.data.rows import read_files
from training.errors import UserError
from training.models.loading import DTYPES
from training.results.parity.generation import Sharded, Trained, Whole
from training.run_folder.paths import PARITY_FOLDER
from training.tokens.encoding import Encoder
from training.tokens.rendering import Renderer
from training.trainer.prepare import Data
from training.trainer.reporting_trainer import ReportingTrainer

_ROWS_FILE, _LOGITS_FILE = "rows.json", "logits.safetensors"
_MOST_LOGITS = 1024
MOST_NEW_TOKENS = 32
_BYTES_PER_WEIGHT = 4


@dataclass
class ReferencePrompt:
    """A row up to its last answer: `messages`, or the text `prompt`; and the tokens that training saw before the answer.

    Of a reward model it is the row with its chosen answer, which the `messages` then end with: it is `complete`.
    `answer` holds the tokens that the reference model generates, including the end token if it stops, or the class that a
    classifier gives; `expected` those of the row's own answer, as far as they were trained, and `loss` their mean cross-entropy
    in nats. `expected_text` is that answer as text. `own_answer` is generated with the model's own generation configuration,
    such as a repetition penalty; None if it has none, or the ranks share the weights.
    """

    row: int
    prompt_ids: list[int]
    text: str
    messages: list[Message] | None = None
    tools: list[Row] | None = None
    complete: bool = False
    expected: list[int] = field(default_factory=list)
    expected_text: str = ""
    answer: list[int] = field(default_factory=list)
    own_answer: list[int] | None = None
    loss: float | None = None


@dataclass(frozen=True)
class Logits:
    """The largest logits after each prompt in fp32, at most (rows, 1,024): `values` of the tokens `tokens`.

    `normalizers` (rows,) are the log-sum-exp over the whole vocabulary; a value minus it is the log probability.
    """

    tokens: NDArray[np.int64]
    values: NDArray[np.float32]
    normalizers: NDArray[np.float64]

    @classmethod
    def of(cls, rows: Sequence[NDArray[np.float32]]) -> "Logits":
        """The largest of the logits (vocabulary,) of each row."""
        whole = torch.from_numpy(np.stack(rows))
        largest = whole.topk(min(_MOST_LOGITS, whole.shape[1]))
        return cls(largest.indices.numpy(), largest.values.numpy(), whole.double().logsumexp(dim=1).numpy())


@dataclass
class Reference:
    """The prompts, and the trained model's logits after them.

    `ends` are the tokens at which the trained model ends an answer; without `max_new_tokens` it gives scores instead.
    `template_arguments` are those of the chat template. `exact` is True if it computed in fp32 with weights in fp32. `classes` are
    those of a classifier.
    """

    prompts: list[ReferencePrompt]
    logits: Logits | None = None
    ends: list[int] = field(default_factory=list)
    template_arguments: dict[str, Any] = field(default_factory=dict)
    max_new_tokens: int = 0
    exact: bool = False
    classes: list[str] = field(default_factory=list)

    def write(self, run_dir: Path) -> None:
        """Writes the reference into the run's folder. Raises OSError if the disk is full."""
        folder = run_dir / PARITY_FOLDER
        folder.mkdir(exist_ok=True)
        facts = {name: value for name, value in vars(self).items() if name not in ("prompts", "logits")}
        facts["prompts"] = [asdict(prompt) for prompt in self.prompts]
        (folder / _ROWS_FILE).write_text(json.dumps(facts, ensure_ascii=False) + "\n", encoding="utf-8")
        if self.logits is not None:
            save_file(vars(self.logits), folder / _LOGITS_FILE)

    @classmethod
    def read(cls, run_dir: Path) -> "Reference | None":
        """Reads the reference of a run; None if it has none."""
        folder = run_dir / PARITY_FOLDER
        if not (folder / _ROWS_FILE).is_file():
            return None
        facts = json.loads((folder / _ROWS_FILE).read_text(encoding="utf-8"))
        facts["prompts"] = [ReferencePrompt(**prompt) for prompt in facts["prompts"]]
        logits = Logits(**load_file(folder / _LOGITS_FILE)) if (folder / _LOGITS_FILE).is_file() else None
        return cls(**facts, logits=logits)


def _prompts(config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, count: int) -> list[ReferencePrompt]:
    """The first `count` held-out rows with a prompt; of the training rows if none are held out. Empty for other tasks."""
    renderer, encoder = Renderer(tokenizer, ChatSettings.of(config)), Encoder(tokenizer)
    if not config.task.traits.generates:
        return list(islice(_scored(config, data, renderer, tokenizer), count))
    if not config.task.traits.renders_rows:
        return []
    found: list[ReferencePrompt] = []
    for row, example, item in _rows(data):
        text, answer = renderer.question(example)
        if not text:
            continue
        # Whether the last tokens with loss are the answer.
        marked = not config.train_on_prompt and config.loss_on is not LossOn.FIELD
        parts = _prompt_and_answer(item) if marked else None
        ids, expected = parts or (encoder.prompt(renderer.last_turn(example)), [])
        prompt = _prompt(row, example, ids, text, templated=renderer.templates)
        found.append(replace(prompt, expected=expected, expected_text=answer))
        if len(found) == count:
            break
    return found


def _scored(
    config: RunConfig, data: Data, renderer: Renderer, tokenizer: PreTrainedTokenizerBase
) -> Iterator[ReferencePrompt]:
    """The rows that a classifier or a reward model saw whole. A text without a template ends with the end token for a reward."""
    for row, example, item in _rows(data):
        ids = [int(token) for token in item.get("chosen", item)["input_ids"]]
        if len(ids) >= config.max_length:
            continue
        if config.task.traits.has_classes:
            yield _prompt(row, example, ids, renderer.question(example)[0], templated=renderer.templates)
        elif example.messages is not None and renderer.templates:
            yield ReferencePrompt(row, ids, "", example.messages, example.tools, complete=True)
        else:
            yield ReferencePrompt(row, ids, renderer.render(example).text + (tokenizer.eos_token or ""), complete=True)


def _rows(data: Data) -> Iterator[tuple[int, Example, Any]]:
    """Rows with their number over all files, and as training saw them."""
    view, files = (data.held_out, data.held_out_files) if data.held_out is not None else (data.train, data.files)
    if not hasattr(view, "rows"):  # a stream
        return
    places = {int(row): index for index, row in reversed(list(enumerate(view.rows.tolist())))}
    for number, _, _, _, example in read_files(files.files):
        if example and number in places:
            yield number, example, view[places[number]]


def _prompt_and_answer(item: Mapping[str, Any]) -> tuple[list[int], list[int]] | None:
    """The tokens before the last run of tokens with loss, and that run; None if the row was cut off there."""
    row = item.get("chosen", item)
    if "labels" not in row:
        return None
    trained = np.flatnonzero(row["labels"] != IGNORED)
    if not len(trained):
        return None
    gaps = np.flatnonzero(np.diff(trained) > 1)
    start, end = trained[gaps[-1] + 1] if len(gaps) else trained[0], trained[-1] + 1
    return [int(token) for token in row["input_ids"][:start]], [int(token) for token in row["input_ids"][start:end]]


def _prompt(row: int, example: Example, ids: list[int], text: str, *, templated: bool) -> ReferencePrompt:
    if example.messages is None or not templated:
        return ReferencePrompt(row, ids, text)
    last = max(index for index, message in enumerate(example.messages) if message["role"] == "assistant")
    return ReferencePrompt(row, ids, text, example.messages[:last], example.tools)


def _end_tokens(data: Data, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The special tokens with which rows of the training data end their last answer, as far as the first rows show."""
    special, found = set(tokenizer.all_special_ids), set()
    special |= {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    for _, _, item in islice(_rows(data), 64):
        row = item.get("chosen", item)
        if "labels" in row and len(trained := np.flatnonzero(row["labels"] != IGNORED)):
            found.add(int(row["input_ids"][trained[-1]]))
    return sorted(found & special)


def _answered(reference: Reference, model: Trained, device: torch.device, autocast: torch.dtype | None) -> Reference:
    """Adds the trained model's greedy answers and the logits after each prompt."""
    logits = []
    for prompt in reference.prompts:
        with torch.autocast(device.type, autocast or torch.bfloat16, enabled=autocast is not None):
            prompt.answer, first = (
                model.greedy(prompt.prompt_ids, reference.ends, reference.max_new_tokens)
                if reference.max_new_tokens
                else model.scores(prompt.prompt_ids)
            )
            if reference.max_new_tokens:
                prompt.own_answer = model.own(prompt.prompt_ids, reference.ends, reference.max_new_tokens)
            prompt.loss = model.loss(prompt.prompt_ids, prompt.expected) if prompt.expected else None
        logits.append(first)
    reference.logits = Logits.of(logits)
    if not np.isfinite(reference.logits.values).all():
        raise UserError(
            "model", None, "answers with logits that are NaN or infinite.", "Set precision to bf16 or fp32."
        )
    return reference


def by_all_ranks(config: RunConfig) -> bool:
    """True if no rank holds the whole trained model, so that all of them answer together."""
    return config.strategy in (Strategy.ZERO3, Strategy.FSDP)


def record(
    trainer: ReportingTrainer, config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, precision: Precision
) -> Reference | None:
    """Chooses the prompts and lets the trained model answer them. None if there is no prompt."""
    chosen = _prompts(config, data, tokenizer, config.verify_rows) if config.verify_rows else []
    if not chosen:
        return None
    model, device = trainer.model.eval(), trainer.args.device
    generates = config.task.traits.generates
    reference = Reference(
        chosen,
        ends=_ends(model, data, tokenizer) if generates else [],
        template_arguments=template_arguments(config.chat_template_kwargs),
        max_new_tokens=min(MOST_NEW_TOKENS, config.max_new_tokens) if generates else 0,
        exact=precision is Precision.FP32 and all(weight.dtype is torch.float32 for weight in model.parameters()),
        classes=list(data.classes),
    )
    autocast = None if precision is Precision.FP32 else DTYPES[precision]
    if by_all_ranks(config):
        trainer.model_wrapped.eval()  # DeepSpeed's returns nothing
        return _answered(reference, Sharded(trainer.model_wrapped, model, device), device, autocast)
    cached, model.config.use_cache = model.config.use_cache, True
    try:
        return _answered(reference, Whole(model), device, autocast)
    finally:
        model.config.use_cache = cached


def fits_here(parameters: int) -> bool:
    """True if a model that the ranks shared can be loaded by this one: half of the free memory, in fp32."""
    free = [psutil.virtual_memory().available]
    if torch.cuda.is_available():
        free.append(torch.cuda.mem_get_info()[0])
    return parameters * _BYTES_PER_WEIGHT < min(free) / 2


def _ends(model: Any, data: Data, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """The base model's end tokens, and those that the rows teach."""
    configured = model.generation_config.eos_token_id
    known = configured if isinstance(configured, list) else [configured, tokenizer.eos_token_id]
    return sorted({int(end) for end in (*known, *_end_tokens(data, tokenizer)) if end is not None})
