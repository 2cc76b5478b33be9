"""A stand-in for NVIDIA's driver library, with GPUs and faults of one's choice (tests/programs/nvml.cpp)."""

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pynvml
import pytest
from paths import TESTS

from worker.machine import gpus

GIB = 2**30
H100 = "NVIDIA~H100~80GB~HBM3"
LOST, NO_PERMISSION, UNKNOWN, RESET, MISMATCH, NOT_LOADED = 15, 4, 999, 16, 18, 9

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@cache
def library() -> Path:
    """The folder with the compiled library, for LD_LIBRARY_PATH."""
    source = TESTS / "programs" / "nvml.cpp"
    name = hashlib.sha256(source.read_bytes()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"lathe-nvml-{name}"
    folder.mkdir(exist_ok=True)
    if not (folder / "libnvidia-ml.so.1").exists():
        with tempfile.TemporaryDirectory(dir=folder) as build:
            compiled = Path(build) / "library.so"
            subprocess.run(["g++", "-shared", "-fPIC", "-o", str(compiled), str(source)], check=True)
            compiled.replace(folder / "libnvidia-ml.so.1")
    return folder


def gpu(number: int, name: str = H100, gib: int = 80, capability: str = "9 0") -> str:
    """A line of the stand-in's file: a GPU."""
    return f"gpu {name} {gib * GIB} {capability} GPU-{number}abc"


def install(monkeypatch: pytest.MonkeyPatch, file: Path, *lines: str) -> None:
    """Lets this process and those that it starts see these GPUs."""
    file.write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("STAND_IN_NVML", str(file))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(library()))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library() / "libnvidia-ml.so.1")))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    gpus._listed.cache_clear()
    # The C library has its own copy of the environment, which os.environ changes too (putenv).
