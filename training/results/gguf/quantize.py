"""Quantized GGUF files by llama.cpp's own quantizer, which the package llama_cpp_python has (the extra `llama`)."""

import ctypes
import errno
import shutil
from pathlib import Path
from types import ModuleType

from training.errors import UserError
from training.results.gguf.convert import convert
from training.results.gguf.library import llama_cpp
from training.results.progress import Tell, silent
from training.run_folder.gguf_types import GgufType

_SPARE_BYTES = 64 * 2**20


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
    whole, part = target.with_name(f"{target.name}.whole"), target.with_name(f"{target.name}.part")
    try:
        notes = convert(folder, whole, tell=tell)
        tell(f"quantizing to {kind.value}", 0, 0)
        quantize(library, whole, part, kind)
        part.replace(target)
    finally:
        whole.unlink(missing_ok=True)
        part.unlink(missing_ok=True)
    return notes


def quantize(library: ModuleType, whole: Path, target: Path, kind: GgufType) -> None:
    """Quantizes a GGUF file.

    Raises:
        UserError: llama.cpp cannot.
    """
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
    free = shutil.disk_usage(target.parent).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"The GGUF file needs up to {needed:,} bytes, and the disk has {free:,} free")
