"""Loads the base model once, adapters on it, and models of their own, each with its tokenizer and end tokens."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig

from training.config.choices import Method, Precision, Quantization
from training.config.run_config import RunConfig
from training.errors import UserError
from training.model_info.folder import has_tokenizer
from training.models.loading import DTYPES, check_finite, keep_four_bit_format, quantization
from training.ranks.distributed import compute_device
from training.serving.text import TokenBytes
from training.trainer.answering import configured_ends, end_tokens

_UNKNOWN_CONTEXT = 2048


@dataclass(frozen=True)
class Base:
    """The base model: folder or hub id, revision, precision of its weights, and quantization (none, 4bit or 8bit)."""

    model: str
    name: str
    revision: str = "main"
    precision: str = "auto"
    quantized: str = "none"

    @property
    def dtype(self) -> torch.dtype | str:
        """That of its weights; "auto" for the one in its files."""
        return DTYPES[Precision(self.precision)] if self.precision != "auto" else "auto"


@dataclass
class Shared:
    """The module that a base model and its adapters share; None if vLLM has it. The first adapter replaces it by PEFT's."""

    module: Any = None


@dataclass(frozen=True)
class Served:
    """A model that answers: the module, its adapter there (None: without one; of vLLM, its name there), tokenizer, end tokens
    and context in tokens.
    """

    name: str
    shared: Shared
    adapter: str | None
    tokenizer: Any
    ends: tuple[int, ...]
    context: int
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @property
    def module(self) -> Any:
        return self.shared.module

    @property
    def reads_prompt(self) -> bool:
        """True of an encoder-decoder: its encoder reads the prompt, and the answer has a context of its own."""
        return self.module is not None and bool(self.module.config.is_encoder_decoder)

    @cached_property
    def token_bytes(self) -> TokenBytes:
        return TokenBytes(self.tokenizer)

    @contextmanager
    def active(self) -> Iterator[Any]:
        """The module as this model. The adapter is a state of the module: one request at a time."""
        if not isinstance(self.module, PeftModel):
            yield self.module
        elif self.adapter is None:
            with self.module.disable_adapter():
                yield self.module
        else:
            self.module.set_adapter(self.adapter)
            yield self.module


def load(
    base: Base,
    adapters: Mapping[str, Path],
    models: Mapping[str, Path],
    arguments: Mapping[str, Mapping[str, Any]],
) -> dict[str, Served]:
    """The models by name, the base first. `arguments` are those of the chat template, by the model's name. Raises UserError if
    one of them cannot be loaded."""
    device = compute_device().type
    tokenizers = tokenizers_of(base, adapters)
    module = _base(base, list(tokenizers.values())).to(device).eval()
    whole = tuple(end_tokens(module.generation_config, tokenizers[base.name]))
    found: dict[str, tuple[str | None, tuple[int, ...]]] = {base.name: (None, whole)}
    _end_as_requested(module)
    for index, (name, folder) in enumerate(adapters.items()):
        module = _with_adapter(module, name, folder, f"adapter{index}")
        saved = saved_ends(folder)
        found[name] = (f"adapter{index}", whole if saved is None else saved)
    shared = Shared(module.to(device).eval())
    served = {
        name: Served(name, shared, adapter, tokenizers[name], ends, _context(module), arguments.get(name, {}))
        for name, (adapter, ends) in found.items()
    }
    return served | {
        name: _model(name, folder, base, device, arguments.get(name, {})) for name, folder in models.items()
    }


def load_adapter(base: Served, name: str, folder: Path, arguments: Mapping[str, Any]) -> Served:
    """Loads an adapter beside those on a base model, which answers nothing meanwhile; `arguments` as in `load`. Raises UserError
    if it cannot be loaded, and leaves the base model as it was."""
    module, tokenizer = base.module, own_tokenizer(folder) or base.tokenizer
    given, most = f"{name}={folder}", module.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > most:
        message = f"has {len(tokenizer):,} tokens, and the base model was loaded with {most:,}."
        raise UserError("adapter", given, message, "Load it with its base model.")
    inside = f"adapter{len(module.peft_config) if isinstance(module, PeftModel) else 0}"
    try:
        module = _with_adapter(module, name, folder, inside).to(module.device).eval()
    except UserError:
        _without(module, inside)
        raise
    base.shared.module = module
    saved = saved_ends(folder)
    ends = base.ends if saved is None else saved
    return Served(name, base.shared, inside, tokenizer, ends, base.context, arguments)


def _without(module: Any, inside: str) -> None:
    """Removes an adapter that was not loaded as a whole."""
    if isinstance(module, PeftModel):
        if inside in module.peft_config:
            module.delete_adapter(inside)
        return
    for name, layer in list(module.named_modules()):
        if isinstance(layer, (BaseTunerLayer, AuxiliaryTrainingWrapper)):
            original = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer.original_module
            module.set_submodule(name, original)
    vars(module).pop("peft_config", None)


def _base(base: Base, tokenizers: Sequence[Any]) -> Any:
    bits = None
    if base.quantized != Quantization.NONE:
        config = RunConfig(
            model=base.model, data="none", method=Method.QLORA, quantization=Quantization(base.quantized)
        )
        bits = quantization(config, torch.get_default_dtype(), torch.bfloat16)
    module = _generating(base.model, base.revision, base.dtype, bits)
    longest = max(len(tokenizer) for tokenizer in tokenizers)
    if longest > module.get_input_embeddings().num_embeddings:
        module.resize_token_embeddings(longest)
    return module


def _generating(model: str, revision: str, dtype: torch.dtype | str, bits: Any = None) -> Any:
    """A decoder that continues text, or an encoder-decoder."""
    try:
        config = AutoConfig.from_pretrained(model, revision=revision, trust_remote_code=False)
        kind = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
        module = kind.from_pretrained(
            model,
            revision=revision,
            dtype=dtype,
            quantization_config=bits,
            trust_remote_code=False,
            use_safetensors=True,
        )
    except (OSError, ValueError) as error:
        fix = "Give the folder or hub id of a language model of transformers."
        raise UserError("model", model, f"cannot be loaded: {error}", fix) from error
    keep_four_bit_format(module)
    return module


def _with_adapter(module: Any, name: str, folder: Path, inside: str) -> Any:
    try:
        if isinstance(module, PeftModel):
            module.load_adapter(str(folder), adapter_name=inside)
        else:
            module = PeftModel.from_pretrained(module, str(folder), adapter_name=inside)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        fix = "Give the folder of an adapter that PEFT can load on this base model beside the others."
        raise UserError("adapter", f"{name}={folder}", f"cannot be loaded: {error}", fix) from error
    check_finite(module, "adapter", f"{name}={folder}", f".{inside}")
    return module


def _model(name: str, folder: Path, base: Base, device: str, arguments: Mapping[str, Any]) -> Served:
    module = _generating(str(folder), "main", base.dtype).to(device).eval()
    check_finite(module, "model", f"{name}={folder}")
    tokenizer = own_tokenizer(folder) or _tokenizer(base.model, base.revision)
    saved = saved_ends(folder)
    ends = tuple(end_tokens(module.generation_config, tokenizer)) if saved is None else saved
    _end_as_requested(module)
    return Served(name, Shared(module), None, tokenizer, ends, _context(module), arguments)


def tokenizers_of(base: Base, adapters: Mapping[str, Path]) -> dict[str, Any]:
    """The tokenizer of the base model, and of each adapter its own or the base model's, by name. Raises UserError if one cannot
    be loaded."""
    own = _tokenizer(base.model, base.revision)
    return {base.name: own} | {name: own_tokenizer(folder) or own for name, folder in adapters.items()}


def own_tokenizer(folder: Path) -> Any:
    """The tokenizer in a folder; None without one. Raises UserError if it cannot be loaded."""
    return _tokenizer(str(folder), "main") if has_tokenizer(folder) else None


def _tokenizer(model: str, revision: str) -> Any:
    try:
        return AutoTokenizer.from_pretrained(model, revision=revision, trust_remote_code=False)
    except (OSError, ValueError) as error:
        fix = "Use a folder or hub id of a transformers model."
        raise UserError("model", model, f"has no loadable tokenizer: {error}", fix) from error


def saved_ends(folder: Path) -> tuple[int, ...] | None:
    """The end tokens of the result's generation configuration; None without one."""
    try:
        return tuple(configured_ends(GenerationConfig.from_pretrained(folder))) or None
    except (OSError, ValueError, json.JSONDecodeError):
        return None


def _end_as_requested(module: Any) -> None:
    """Removes the module's own end tokens, which transformers would use in a request without any."""
    module.generation_config.eos_token_id = None


def _context(module: Any) -> int:
    config = module.config.get_text_config()
    return int(getattr(config, "max_position_embeddings", None) or _UNKNOWN_CONTEXT)
