"""DeepSpeed's operators, which are compiled at their first use on a machine: told, guarded, and refused in plain words."""

import importlib.util
import threading
from pathlib import Path
from typing import Any, Self

from training import operators
from training.config import Offload, RunConfig
from training.events import Note
from training.failure import UserError
from training.report import Report

_SECONDS_BETWEEN_LOOKS = 1.0
_PATIENCE_SECONDS = 45.0  # in which a quiet machine is done


def reuse_operators(report: Report | None = None) -> None:
    """Has DeepSpeed take its operators as they were compiled before, and makes a phase of compiling those that are not there.

    Without a `report` nothing is said.
    """
    operators.use_own_folder()
    from deepspeed.ops.op_builder.builder import OpBuilder

    compile_now = OpBuilder.jit_load

    def load(builder: Any, verbose: bool = True) -> Any:
        folder = operators.folder_of(builder.name)
        with Telling(report, builder, folder) as telling, operators.alone(folder, telling.wait):
            module = _load(builder.name, folder)
            if module is None:
                telling.begin()
                operators.clear(folder)
                module = compile_now(builder, verbose)
                operators.stamp(folder, builder.name)
        OpBuilder._loaded_ops[builder.name] = module
        return module

    OpBuilder.jit_load = load


def _load(name: str, folder: Path) -> Any:
    """The operator's module, or None where there is none that can be loaded."""
    library = operators.usable(folder, name)
    if library is None:
        return None
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec and spec.loader
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # a library that it needs is of another version
        return None
    return module


class Telling:
    """Says on rank 0, from `begin` to the end of the `with`, that an operator is compiled and how far that is."""

    def __init__(self, report: Report | None, builder: Any, folder: Path) -> None:
        self._report, self._name, self._folder = report, builder.name, folder
        self._files = len(builder.sources()) + 1  # an object each, and the library
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Enters the phase; a second call does nothing."""
        if self._report is None or self._thread is not None:
            return
        message = f"Compiling DeepSpeed operator {self._name}: one to two minutes, once on this machine."
        self._report.once(Note(message=message))
        self._before = self._report.phase
        self._report.enter(operators.PHASE)
        self._thread = threading.Thread(target=self._follow, args=(self._report,), daemon=True)
        self._thread.start()

    def wait(self, seconds: float) -> None:
        """Says that another process compiles; one that does so in the background is not waited for very long."""
        self.begin()
        if self._report is not None and seconds > _PATIENCE_SECONDS:
            operators.end_compiling_ahead()

    def _follow(self, report: Report) -> None:
        told = -1
        while not self._over.wait(_SECONDS_BETWEEN_LOOKS):
            done = operators.compiled_files(self._folder)
            if done != told:
                report.progress(done, self._files)
                told = done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        if self._report is not None and self._thread is not None:
            self._thread.join()
            if kind is None:  # an error is one of this phase
                self._report.enter(self._before)


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
