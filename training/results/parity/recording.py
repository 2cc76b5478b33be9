"""Records the reference at the end of training, and verifies the forms that exist then."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from training.config.choices import Precision, Strategy
from training.config.name_values import template_arguments
from training.config.run_config import RunConfig
from training.models.loading import DTYPES
from training.results.parity.generation import Sharded, Whole
from training.results.parity.reference import Reference, answered, end_tokens, prompts
from training.results.parity.verify import verdict, verify
from training.run_folder.paths import MERGED_FOLDER, PARITY_FILE
from training.trainer.prepare import Data
from training.trainer.reporting_trainer import ReportingTrainer

MOST_NEW_TOKENS = 32
_BYTES_PER_WEIGHT = 4


def by_all_ranks(config: RunConfig) -> bool:
    """True if no rank holds the whole trained model, so that all of them answer together."""
    return config.strategy in (Strategy.ZERO3, Strategy.FSDP)


def record(
    trainer: ReportingTrainer, config: RunConfig, data: Data, tokenizer: PreTrainedTokenizerBase, precision: Precision
) -> Reference | None:
    """Chooses the prompts and lets the trained model answer them. None if there is no prompt."""
    chosen = prompts(config, data, tokenizer, config.verify_rows) if config.verify_rows else []
    if not chosen:
        return None
    model, device = trainer.model.eval(), trainer.args.device
    generates = config.task.generates
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
        return answered(reference, Sharded(trainer.model_wrapped, model, device), device, autocast)
    cached, model.config.use_cache = model.config.use_cache, True
    try:
        return answered(reference, Whole(model), device, autocast)
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
    return sorted({int(end) for end in (*known, *end_tokens(data, tokenizer)) if end is not None})


def write_generation_config(result: Path, config: RunConfig, ends: Sequence[int]) -> None:
    """Writes generation_config.json beside the weights: answers end where the trained model ends them.

    PEFT saves none, and a base model's own often lacks the token that ends a turn of a chat.
    """
    try:
        generation = GenerationConfig.from_pretrained(config.model, revision=config.revision or "main")
    except (OSError, ValueError):  # the base model has none
        generation = GenerationConfig()
    generation.eos_token_id = list(ends) or None
    generation.save_pretrained(result)


def verified(config: RunConfig, run_dir: Path, reference: Reference) -> dict[str, Any]:
    """Compares the forms that exist at the end of training, and writes the verdict to PARITY_FILE."""
    names = ["adapter" if config.method.adapts else "model"]
    if (run_dir / MERGED_FOLDER).is_dir():
        names.append("merged")
    document = verdict(reference, list(verify(config, run_dir, reference, names)))
    (run_dir / PARITY_FILE).write_text(json.dumps(document) + "\n", encoding="utf-8")
    return document
