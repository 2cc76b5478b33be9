"""Models that score or teach a run: whole on each rank and frozen, also where the ranks divide the trained model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.integrations import deepspeed

from training.chat import tokenizer as tokenizers
from training.config.choices import Method, Precision, Quantization, Strategy
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import UserError
from training.model_info.folder import adapter_base, has_tokenizer
from training.model_info.vocabulary import refuse_other_tokens
from training.models.attention import attend_without_groups, has_flash_kernels
from training.models.loading import DTYPES, check_finite, load_model


def load_teacher(
    config: RunConfig, precision: Precision, tokenizer: PreTrainedTokenizerBase, device: torch.device
) -> PreTrainedModel | PeftModel:
    """Returns the teacher in the run's precision, in evaluation mode and without gradients.

    Raises:
        UserError: there is none, it cannot be loaded, or its tokenizer has other tokens than the run's.
    """
    name = str(config.teacher)
    fix = "Set teacher to a model folder, a hub id, the folder of an adapter, or the id of a run."
    with refused_as("teacher", name, fix):
        tokens = tokenizer_of(config, name)
        refuse_other_tokens(config.teacher, tokenizer.get_vocab(), tokens.get_vocab())
        return load_frozen(config, name, config.teacher_quantization, precision, len(tokens), device)


def tokenizer_of(config: RunConfig, name: str, template: str | None = None) -> PreTrainedTokenizerBase:
    """The tokenizer in a folder, or that of the model to which the adapter in it belongs."""
    base = adapter_base(Path(name))
    return tokenizers.load(
        name if base is None or has_tokenizer(Path(name)) else base or config.model, template=template
    )


def load_frozen(
    config: RunConfig,
    name: str,
    quantization: Quantization,
    precision: Precision,
    tokens: int,
    device: torch.device,
    task: Task | None = None,
) -> PreTrainedModel | PeftModel:
    """Returns the model in a folder, of a hub id, or of an adapter, in evaluation mode and without gradients; `task` says of which
    class, by default of the run's.

    Raises:
        UserError: it cannot be loaded, or has weights that are not finite.
    """
    base = adapter_base(Path(name))
    own = config.model_copy(
        update={
            "model": config.model if base == "" else base or name, "revision": None, "strategy": Strategy.SINGLE,
            "method": Method.LORA if quantization is Quantization.NONE else Method.QLORA,
            "quantization": quantization, "init_adapter": None, "chat_template": None, "task": task or config.task,
        }
    )  # fmt: skip
    with _whole_models():
        model = _loaded(own, precision, tokens, Path(name) if base is not None else None)
    check_finite(model, "model", name)
    if quantization is Quantization.NONE:
        model = model.to(device)
    return model.requires_grad_(False).eval()


@contextmanager
def refused_as(field: str, name: str, fix: str) -> Iterator[None]:
    """Names `field` in errors of a model that another setting than `model` names."""
    try:
        yield
    except UserError as error:
        if error.problem.field == field:
            raise
        raise UserError(field, name, error.message, fix) from error


def _loaded(config: RunConfig, precision: Precision, tokens: int, adapter: Path | None) -> Any:
    model = load_model(config, DTYPES[precision], tokens, compute=DTYPES[precision], trains=True)
    if not has_flash_kernels(precision):
        attend_without_groups(model, config)
    if adapter is None:
        return model
    try:
        return PeftModel.from_pretrained(model, str(adapter))
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        fix = f"Give the folder of an adapter that PEFT can load on {config.model}."
        raise UserError("model", str(adapter), f"cannot be loaded: {error}", fix) from error


@contextmanager
def _whole_models() -> Iterator[None]:
    """Lets transformers load a model whole: under ZeRO-3 it would divide each among the ranks."""
    before = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = before
