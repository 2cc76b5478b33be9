"""The teacher of a run: a whole model on each rank, frozen, also where the ranks divide the trained model."""

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
    base = adapter_base(Path(name))
    own = config.model_copy(
        update={
            "model": config.model if base == "" else base or name, "revision": None, "strategy": Strategy.SINGLE,
            "method": Method.LORA if config.teacher_quantization is Quantization.NONE else Method.QLORA,
            "quantization": config.teacher_quantization, "init_adapter": None, "chat_template": None,
        }
    )  # fmt: skip
    try:
        tokens = tokenizers.load(name if base is None or has_tokenizer(Path(name)) else own.model)
        refuse_other_tokens(config.teacher, tokenizer.get_vocab(), tokens.get_vocab())
        with _whole_models():
            model = _loaded(own, precision, len(tokens), Path(name) if base is not None else None)
        check_finite(model, "teacher", name)
    except UserError as error:
        if error.problem.field == "teacher":
            raise
        fix = "Set teacher to a model folder, a hub id, the folder of an adapter, or the id of a run."
        raise UserError("teacher", name, error.message, fix) from error
    if config.teacher_quantization is Quantization.NONE:
        model = model.to(device)
    return model.requires_grad_(False).eval()


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
        raise UserError("teacher", str(adapter), f"cannot be loaded: {error}", fix) from error


@contextmanager
def _whole_models() -> Iterator[None]:
    """Lets transformers load a model whole: under ZeRO-3 it would divide each among the ranks."""
    before = deepspeed._hf_deepspeed_config_weak_ref
    deepspeed.unset_hf_deepspeed_config()
    try:
        yield
    finally:
        deepspeed._hf_deepspeed_config_weak_ref = before
