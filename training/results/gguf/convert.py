"""Writes a model folder as one GGUF file, also quantized by llama.cpp (the extra `llama`). Tensors are copied one at a time."""

import ctypes
import re
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import gguf
import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig

from training.errors import UserError
from training.files import check_free_space, whole_file
from training.results.gguf.architectures import Architecture, architecture_of, refusal
from training.results.gguf.llama import llama_cpp
from training.results.gguf.metadata import add_shape, context_length, factor_tensors
from training.results.gguf.vocabulary import add_vocabulary
from training.results.progress import Tell, silent
from training.run_folder.derived import GgufType
from training.tables import Otherwise

_STORED = {
    torch.float32: gguf.GGMLQuantizationType.F32,
    torch.float16: gguf.GGMLQuantizationType.F16,
    torch.bfloat16: gguf.GGMLQuantizationType.BF16,
}
_FILE_TYPES = {
    gguf.GGMLQuantizationType.F32: gguf.LlamaFileType.ALL_F32,
    gguf.GGMLQuantizationType.F16: gguf.LlamaFileType.MOSTLY_F16,
    gguf.GGMLQuantizationType.BF16: gguf.LlamaFileType.MOSTLY_BF16,
    gguf.GGMLQuantizationType.Q8_0: gguf.LlamaFileType.MOSTLY_Q8_0,
}
_WANTED = Otherwise(None, {GgufType.F16: gguf.GGMLQuantizationType.F16, GgufType.Q8_0: gguf.GGMLQuantizationType.Q8_0})
_BLOCK = 32
_NO_WEIGHTS = (".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq")
_TEXT_MODEL = re.compile(r"^(model\.)?language_model\.(model\.)?")
_OTHER_MODELS = ("vision_tower.", "multi_modal_projector.")
_SPARE_BYTES = 64 * 2**20


@dataclass(frozen=True)
class ModelSource:
    """A model folder with its configuration and its architecture; `config` is that of the text model."""

    folder: Path
    config: Any
    architecture: Architecture

    @classmethod
    def of(cls, folder: Path) -> "ModelSource":
        """The model in a folder. Raises UserError if its architecture is not supported."""
        config = AutoConfig.from_pretrained(folder)
        architecture, text = architecture_of(config), config.get_text_config()
        text.dtype = config.dtype or text.dtype or torch.float32
        text.tie_word_embeddings = config.tie_word_embeddings
        return cls(folder, text, architecture)


def convert(folder: Path, target: Path, kind: GgufType = GgufType.TRAINED, tell: Tell = silent) -> list[str]:
    """Writes the model in `folder` to `target` atomically. Returns sentences about what to know of the file. Raises UserError if
    its architecture, positions or tokenizer are not supported, and OSError if the disk is full."""
    source = ModelSource.of(folder)
    with gguf_file(target, source.architecture) as writer:
        writer.add_name(folder.resolve().parent.name)  # the run's id
        writer.add_file_type(_FILE_TYPES[_WANTED[kind] or _STORED[source.config.dtype]])
        add_shape(writer, source.config, source.architecture)
        add_vocabulary(writer, folder, source.config.vocab_size)
        _write(writer, source, kind, tell)
    return _notes(source)


@contextmanager
def gguf_file(target: Path, architecture: Architecture) -> Iterator[gguf.GGUFWriter]:
    """A writer of a model or an adapter; the file is at `target` once it is complete."""
    with whole_file(target) as part, closing(gguf.GGUFWriter(part, gguf.MODEL_ARCH_NAMES[architecture.arch])) as writer:
        yield writer


def _notes(source: ModelSource) -> list[str]:
    length, whole = context_length(source.config, source.architecture), source.config.max_position_embeddings
    if length == whole:
        return []
    return [
        f"llama.cpp does not compute this model's sliding window, so its context is {length:,} tokens and not {whole:,}."
    ]


def _write(writer: gguf.GGUFWriter, source: ModelSource, kind: GgufType, tell: Tell) -> None:
    """Writes the description of every tensor, then the tensors in the same order."""
    total = 0
    for name, tensor in _tensors(source):
        stored = stored_as(name, tensor, kind)
        size = int(np.prod(gguf.quant_shape_to_byte_shape(tensor.shape, stored)))
        writer.add_tensor_info(name, tuple(tensor.shape), np.dtype(np.float32), size, raw_dtype=stored)
        total += size
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    done = 0
    for name, tensor in _tensors(source):
        data = encoded(tensor, stored_as(name, tensor, kind))
        writer.write_tensor_data(data)
        done += data.nbytes
        tell("writing the GGUF file", done, total)


def stored_as(name: str, tensor: torch.Tensor, kind: GgufType) -> gguf.GGMLQuantizationType:
    """The format of a tensor: matrices as wanted, rows that are no whole number of blocks as F16."""
    wanted = _WANTED[kind]
    if wanted is None or tensor.ndim == 1 or name == "position_embd.weight":
        return _STORED[tensor.dtype]
    return wanted if tensor.shape[-1] % _BLOCK == 0 else gguf.GGMLQuantizationType.F16


def encoded(tensor: torch.Tensor, stored: gguf.GGMLQuantizationType) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor in a format."""
    if _STORED.get(tensor.dtype) is stored:
        return tensor.contiguous().view(torch.uint8).numpy()
    quantized = gguf.quants.quantize(tensor.float().contiguous().numpy(), stored)
    return quantized.view(np.uint8)


def _tensors(source: ModelSource) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors in the model's dtype, one in memory at a time; vectors in fp32, which llama.cpp requires. Raises
    UserError if the model has a tensor that its architecture does not have."""
    config, architecture = source.config, source.architecture
    names = Names(config, architecture)
    for file in sorted(source.folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a mapping
                if names.is_weight(name):
                    tensor = architecture.rows(
                        name, architecture.rearrange(name, stored.get_tensor(name), config), config
                    )
                    yield names.of(name), tensor.float() if tensor.ndim == 1 else tensor
    if architecture.arch is not gguf.MODEL_ARCH.GPT2:
        yield from factor_tensors(config)


class Names:
    """llama.cpp's names of an architecture's tensors."""

    def __init__(self, config: Any, architecture: Architecture) -> None:
        self._map = gguf.get_tensor_name_map(architecture.arch, config.num_hidden_layers)
        self._tied = bool(config.tie_word_embeddings)

    def is_weight(self, name: str) -> bool:
        """False for buffers, a tied output layer, and the parts that read images."""
        plain = name.removeprefix("model.")
        tied = self._tied and name.endswith("lm_head.weight")
        return not (tied or name.endswith(_NO_WEIGHTS) or plain.startswith(_OTHER_MODELS))

    def of(self, name: str) -> str:
        """The name in llama.cpp. Raises UserError if there is none."""
        plain = name if name.endswith("lm_head.weight") else _TEXT_MODEL.sub("model.", name)
        plain = plain.removeprefix("language_model.") if plain.endswith("lm_head.weight") else plain
        found = self._map.get_name(plain, try_suffixes=(".weight", ".bias"))
        if found is None:
            raise refusal(name, "is a tensor that this architecture does not have.")
        return str(found)


def write(folder: Path, target: Path, kind: GgufType, tell: Tell = silent) -> list[str]:
    """Writes the model in `folder` to `target` atomically as `kind`. Returns sentences about what to know of the file.

    Raises:
        UserError: the model is not supported, or llama.cpp is not installed and the type needs it.
        OSError: the disk is full.
    """
    _check_free_space(folder, target, kind)
    if not kind.by_llama_cpp:
        return convert(folder, target, kind, tell)
    library = llama_cpp(kind.value, ", or choose Q8_0")
    whole = target.with_name(f"{target.name}.whole")
    try:
        notes = convert(folder, whole, tell=tell)
        tell(f"quantizing to {kind.value}", 0, 0)
        with whole_file(target) as part:
            quantize(library, whole, part, kind)
    finally:
        whole.unlink(missing_ok=True)
    return notes


def quantize(library: ModuleType, whole: Path, target: Path, kind: GgufType) -> None:
    """Quantizes a GGUF file. Raises UserError if llama.cpp cannot."""
    options = library.llama_model_quantize_default_params()
    options.ftype = getattr(library, f"LLAMA_FTYPE_MOSTLY_{kind.value}")
    status = library.llama_model_quantize(str(whole).encode(), str(target).encode(), ctypes.byref(options))
    if status or not target.is_file():
        raise UserError(
            "type", kind.value, f"llama.cpp's quantizer failed with status {status}.", "Its messages are above."
        )


def _check_free_space(folder: Path, target: Path, kind: GgufType) -> None:
    model = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    needed = (2 * model if kind.by_llama_cpp else model) + _SPARE_BYTES
    check_free_space(target.parent, needed, "The GGUF file")
