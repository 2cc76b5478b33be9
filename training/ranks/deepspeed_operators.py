"""DeepSpeed compiles its operators at their first use on a machine. Reports progress, shares the result, checks requirements."""

import importlib
import importlib.util
import threading
from pathlib import Path
from typing import Any, Self

from training import operator_cache
from training.config.choices import Offload
from training.config.run_config import RunConfig
from training.errors import UserError
from training.reports.report import Report

_SECONDS_BETWEEN_CHECKS = 1.0


def reuse_operators(report: Report) -> None:
    """Makes DeepSpeed reuse operators compiled earlier, and reports the compiling of missing ones as a phase."""
    operator_cache.use_own_folder()
    from deepspeed.ops.op_builder.builder import OpBuilder

    compile_now = OpBuilder.jit_load

    def load(builder: Any, verbose: bool = True) -> Any:
        folder = operator_cache.folder_of(builder.name)
        with CompileProgress(report, builder, folder) as progress, operator_cache.alone(folder, progress.begin):
            module = _load(builder.name, folder)
            if module is None:
                progress.begin()
                operator_cache.clear(folder)
                module = compile_now(builder, verbose)
                operator_cache.stamp(folder, builder.name)
        OpBuilder._loaded_ops[builder.name] = module
        return module

    OpBuilder.jit_load = load
    # Only inference reduces by this operator, but each run on a CPU would wait a minute for it at the first run on a machine.
    communication: Any = importlib.import_module("deepspeed.comm.torch")
    communication.build_shm_op = lambda: None


def _load(name: str, folder: Path) -> Any:
    """Returns the operator's module, or None if no compiled one can be loaded."""
    library = operator_cache.usable(folder, name)
    if library is None:
        return None
    spec = importlib.util.spec_from_file_location(name, library)
    assert spec and spec.loader
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError:  # a library it depends on has another version
        return None
    return module


class CompileProgress:
    """Reports on rank 0, from `begin` to the end of the context, that an operator is compiled, and the progress."""

    def __init__(self, report: Report, builder: Any, folder: Path) -> None:
        self._report, self._name, self._folder = report, builder.name, folder
        self._files = len(builder.sources()) + 1  # one object per source, and the library
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Enters the phase; further calls do nothing."""
        if self._thread is not None:
            return
        self._report.note(f"Compiling DeepSpeed operator {self._name}: one to two minutes, once per machine.")
        self._before = self._report.phase
        self._report.enter(operator_cache.PHASE)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        reported = -1
        while not self._over.wait(_SECONDS_BETWEEN_CHECKS):
            done = operator_cache.compiled_files(self._folder)
            if done != reported:
                self._report.progress(done, self._files)
                reported = done

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
            if kind is None:  # an error belongs to this phase
                self._report.enter(self._before)


def check_nvme(config: RunConfig) -> None:
    """Checks the requirements of NVMe offload before anything is loaded; DeepSpeed itself fails only later. Raises UserError if
    the NVMe folder cannot be created, or DeepSpeed cannot compile the operator async_io here."""
    field = next((name for name in ("offload_param", "offload_optimizer") if getattr(config, name) is Offload.NVME), "")
    if not field:
        return
    from deepspeed.accelerator import get_accelerator

    assert config.nvme_path  # training/rules/strategies.py
    try:
        Path(config.nvme_path).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        fix = "Set it to a writable folder on a fast local disk."
        raise UserError("nvme_path", config.nvme_path, f"cannot be created: {error.strerror}.", fix) from None
    if not get_accelerator().create_op_builder("AsyncIOBuilder").is_compatible():
        raise UserError(
            field,
            Offload.NVME.value,
            "needs DeepSpeed's operator async_io, which cannot be compiled here: libaio's headers are missing.",
            "Install g++ and libaio-dev (apt) or libaio-devel (yum), or offload to cpu.",
        )
