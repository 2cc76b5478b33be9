"""Writes a model folder as one GGUF file. Names and keys come from the `gguf` library; tensors are copied one at a time."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import AutoConfig

from training.results.gguf.architectures import Architecture, architecture_of
from training.results.gguf.metadata import add_shape, context_length
from training.results.gguf.tensors import tensors
from training.results.gguf.vocabulary import add_vocabulary
from training.results.progress import Tell, silent
from training.run_folder.gguf_types import GgufType

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
_WANTED = {GgufType.F16: gguf.GGMLQuantizationType.F16, GgufType.Q8_0: gguf.GGMLQuantizationType.Q8_0}
_BLOCK = 32


@dataclass(frozen=True)
class Source:
    """A model folder with its configuration and its architecture; `config` is that of the text model."""

    folder: Path
    config: Any
    found: Architecture

    @classmethod
    def of(cls, folder: Path) -> "Source":
        """The model in a folder.

        Raises:
            UserError: its architecture is not supported.
        """
        config = AutoConfig.from_pretrained(folder)
        found, text = architecture_of(config), config.get_text_config()
        text.dtype = config.dtype or text.dtype or torch.float32
        text.tie_word_embeddings = config.tie_word_embeddings
        return cls(folder, text, found)


def convert(folder: Path, target: Path, kind: GgufType = GgufType.TRAINED, tell: Tell = silent) -> list[str]:
    """Writes the model in `folder` to `target` atomically. Returns sentences about what to know of the file.

    Raises:
        UserError: its architecture, positions or tokenizer are not supported.
        OSError: the disk is full.
    """
    source = Source.of(folder)
    part = target.with_name(f"{target.name}.part")
    writer = gguf.GGUFWriter(part, gguf.MODEL_ARCH_NAMES[source.found.arch])
    try:
        writer.add_name(_name(folder))
        writer.add_file_type(_FILE_TYPES[_WANTED.get(kind, _STORED[source.config.dtype])])
        add_shape(writer, source.config, source.found)
        add_vocabulary(writer, folder, source.config.vocab_size)
        _write(writer, source, kind, tell)
        part.replace(target)
    finally:
        writer.close()
        part.unlink(missing_ok=True)
    return _notes(source)


def _name(folder: Path) -> str:
    """The run's id: the name of the folder that has the model's."""
    return folder.resolve().parent.name


def _notes(source: Source) -> list[str]:
    length, whole = context_length(source.config, source.found), source.config.max_position_embeddings
    if length == whole:
        return []
    return [
        f"llama.cpp does not compute this model's sliding window, so its context is {length:,} tokens and not {whole:,}."
    ]


def _write(writer: gguf.GGUFWriter, source: Source, kind: GgufType, tell: Tell) -> None:
    """Writes the description of every tensor, then the tensors in the same order."""
    total = 0
    for name, tensor in _all(source):
        stored = stored_as(name, tensor, kind)
        size = int(np.prod(gguf.quant_shape_to_byte_shape(tensor.shape, stored)))
        writer.add_tensor_info(name, tuple(tensor.shape), np.dtype(np.float32), size, raw_dtype=stored)
        total += size
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    done = 0
    for name, tensor in _all(source):
        data = encoded(tensor, stored_as(name, tensor, kind))
        writer.write_tensor_data(data)
        done += data.nbytes
        tell("writing the GGUF file", done, total)


def _all(source: Source) -> Iterator[tuple[str, torch.Tensor]]:
    return tensors(source.folder, source.config, source.found)


def stored_as(name: str, tensor: torch.Tensor, kind: GgufType) -> gguf.GGMLQuantizationType:
    """The format of a tensor: matrices as wanted, rows that are no whole number of blocks as F16."""
    wanted = _WANTED.get(kind)
    if wanted is None or tensor.ndim == 1 or name == "position_embd.weight":
        return _STORED[tensor.dtype]
    return wanted if tensor.shape[-1] % _BLOCK == 0 else gguf.GGMLQuantizationType.F16


def encoded(tensor: torch.Tensor, stored: gguf.GGMLQuantizationType) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of a tensor in a format."""
    if _STORED.get(tensor.dtype) is stored:
        return tensor.contiguous().view(torch.uint8).numpy()
    quantized = gguf.quants.quantize(tensor.float().contiguous().numpy(), stored)
    return quantized.view(np.uint8)
