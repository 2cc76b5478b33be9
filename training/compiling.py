"""DeepSpeed's operators, which are compiled at their first use on a machine: told, guarded, and refused in plain words."""

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from training.config import Offload, RunConfig
from training.events import Note
from training.failure import UserError
from training.report import Report

_SECONDS_BETWEEN_LOOKS = 0.2


def tell_of_compiling(report: Report) -> None:
    """Makes a phase of each operator that DeepSpeed compiles: about a minute at its first use on a machine, then cached."""
    from deepspeed.ops.op_builder.builder import OpBuilder
    from torch.utils.cpp_extension import _get_build_directory

    load = OpBuilder.jit_load

    def load_and_tell(builder: Any, verbose: bool = True) -> Any:
        folder = Path(_get_build_directory(builder.name, verbose=False))
        with _alone(folder):
            if list(folder.glob("*.so")):
                return load(builder, verbose)
            told = f"DeepSpeed compiles its operator {builder.name}: about a minute, once on a machine."
            report.once(Note(message=told))
            with report.during("compiling DeepSpeed operators"):
                return load(builder, verbose)

    OpBuilder.jit_load = load_and_tell


def refuse_unfit_nvme(config: RunConfig) -> None:
    """Before anything is loaded, since the operator is asked for only in the midst of it.

    Raises:
        UserError: something is offloaded to NVMe whose folder cannot be made, or DeepSpeed cannot compile here what
            reads and writes it.
    """
    field = next((name for name in ("offload_param", "offload_optimizer") if getattr(config, name) is Offload.NVME), "")
    if not field:
        return
    from deepspeed.accelerator import get_accelerator

    assert config.nvme_path  # training/strategy_rules.py
    try:
        Path(config.nvme_path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "Give a folder on a fast local disk that can be written to."
        raise UserError("nvme_path", config.nvme_path, f"cannot be made: {error.strerror}.", fix) from None
    if not get_accelerator().create_op_builder("AsyncIOBuilder").is_compatible():
        raise UserError(
            field,
            Offload.NVME.value,
            "needs DeepSpeed's operator async_io, which cannot be compiled here: libaio's headers are missing.",
            "Install libaio-dev (apt) or libaio-devel (yum) and g++, or offload to cpu.",
        )


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time, by a lock that ends with its process.

    torch's own lock is a file that a killed process leaves behind, for which everyone after it would wait for ever.
    """
    with (folder / "lathe.lock").open("w") as mine:
        fcntl.flock(mine, fcntl.LOCK_EX)
        theirs = folder / "lock"
        while theirs.exists():  # of a program that is not Lathe, which may be killed while it holds it
            if _is_open(theirs):
                time.sleep(_SECONDS_BETWEEN_LOOKS)
            else:
                theirs.unlink(missing_ok=True)
        yield


def _is_open(file: Path) -> bool:
    """Whether a process has the file open, as torch has its lock while it compiles."""
    wanted = str(file.resolve())
    for handle in Path("/proc").glob("[0-9]*/fd/*"):
        try:
            if str(handle.readlink()) == wanted:
                return True
        except OSError:  # it was closed, or is another user's
            continue
    return False
