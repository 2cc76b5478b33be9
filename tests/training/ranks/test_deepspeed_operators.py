"""DeepSpeed's operators are compiled once, with progress and locks; leftovers of a killed compiler do not block."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from patience import eventually, run
from subtest_table import table
from tiny import make_data, make_model
from trainer_process import start

from training import operator_cache
from training.config.run_config import RunConfig
from training.errors import UserError
from training.ranks import deepspeed_operators
from training.reports.report import Report
from training.run_folder.events import Note, PhaseStarted, Progress, decode

SOURCE = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, TORCH_EXTENSION_NAME_TEXT, 0, -1, 0};
PyMODINIT_FUNC PyInit_tiny_operator(void) { return PyModule_Create(&definition); }
""".replace("TORCH_EXTENSION_NAME_TEXT", '"tiny_operator"')
NAME = "tiny_operator"


def test_the_lock_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with operator_cache.alone(tmp_path):
        assert not (tmp_path / "lock").exists()


def test_a_compiling_process_s_lock_is_respected_until_it_is_killed(tmp_path: Path) -> None:
    hold = "import os, signal, sys; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print(flush=True); signal.pause()"
    with subprocess.Popen([sys.executable, "-c", hold, tmp_path / "lock"], stdout=subprocess.PIPE) as compiler:
        assert compiler.stdout is not None
        compiler.stdout.readline()
        entered = threading.Event()
        waiting = threading.Thread(target=_enter, args=(tmp_path, entered))
        waiting.start()
        assert not entered.wait(0.5)
        compiler.kill()
    waiting.join()
    assert entered.is_set()


def _enter(folder: Path, entered: threading.Event) -> None:
    with operator_cache.alone(folder):
        entered.set()


def test_offloading_to_an_unwritable_disk_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = RunConfig(model="m", data="d", offload_param="nvme", nvme_path=str(tmp_path / "file/nvme"))
    with pytest.raises(UserError, match="nvme_path"):
        deepspeed_operators.check_nvme(config)


@pytest.mark.train
def test_offloading_to_nvme_without_libaio_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("CC", "false")  # no compiler, no operator
    config = RunConfig(model="m", data="d", offload_optimizer="nvme", nvme_path=str(tmp_path))
    with pytest.raises(UserError) as raised:
        deepspeed_operators.check_nvme(config)
    assert raised.value.problem.field == "offload_optimizer" and "libaio-dev" in raised.value.fix


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for operators that is this test's."""
    monkeypatch.setenv(operator_cache.ROOT_VARIABLE, str(tmp_path / "operators"))
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    return tmp_path / "operators"


@pytest.fixture
def load(own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Any]]:
    """Loads a tiny operator as DeepSpeed does at the start of a process, and returns its module."""
    from deepspeed.ops.op_builder.builder import OpBuilder
    from deepspeed.ops.op_builder.cpu.builder import CPUOpBuilder
    from torch.utils.cpp_extension import JIT_EXTENSION_VERSIONER

    source = tmp_path / "tiny.cpp"
    source.write_text(SOURCE)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(OpBuilder, "jit_load", OpBuilder.jit_load)
    deepspeed_operators.reuse_operators(Report(tmp_path, rank=0))

    class Tiny(CPUOpBuilder):  # type: ignore[misc]
        def absolute_name(self) -> str:
            return NAME

        def sources(self) -> list[str]:
            return [str(source)]

        def include_paths(self) -> list[str]:
            return []

        def cxx_args(self) -> list[str]:
            return ["-O0"]

    def begin() -> Any:
        for kept in (OpBuilder._loaded_ops, JIT_EXTENSION_VERSIONER.entries):  # empty only in a new process
            kept.pop(NAME, None)
        return Tiny(name=NAME).load(verbose=False)

    yield begin
    OpBuilder._loaded_ops.pop(NAME, None)


def said(folder: Path, kind: type[Any]) -> list[Any]:
    lines = (folder / "events.jsonl").read_bytes().splitlines() if (folder / "events.jsonl").exists() else []
    return [record for record in map(decode, lines) if isinstance(record, kind)]


def phases(folder: Path) -> list[str]:
    return [record.phase for record in said(folder, PhaseStarted)]


@pytest.mark.train
def test_an_operator_is_compiled_in_its_own_phase_and_then_loaded_silently(
    load: Callable[[], Any], tmp_path: Path
) -> None:
    assert load().__name__ == NAME
    assert phases(tmp_path) == [operator_cache.PHASE, "starting"]
    assert NAME in said(tmp_path, Note)[0].message
    library = operator_cache.usable(operator_cache.folder_of(NAME), NAME)
    assert library
    created = library.stat()
    assert load().__file__ == str(library)
    assert library.stat() == created and len(phases(tmp_path)) == 2


def _cut_off(folder: Path) -> None:
    for path in folder.iterdir():
        if path.suffix != ".o":
            path.unlink()
    (folder / "lock").touch()


def _damaged(folder: Path) -> None:
    (folder / f"{NAME}.so").unlink()  # not overwritten: this process has it mapped
    (folder / f"{NAME}.so").write_bytes(b"\x7fELF and nothing else")


def _of_another_environment(folder: Path) -> None:
    stamp = folder / "lathe.json"
    stamp.write_text(stamp.read_text().replace("torch ", "torch 1."))


@pytest.mark.train
@pytest.mark.parametrize("spoil", [_cut_off, _damaged, _of_another_environment])
def test_an_unusable_operator_is_recompiled(
    spoil: Callable[[Path], None], load: Callable[[], Any], tmp_path: Path
) -> None:
    load()
    spoil(operator_cache.folder_of(NAME))
    assert load().__name__ == NAME
    assert phases(tmp_path) == 2 * [operator_cache.PHASE, "starting"]
    assert operator_cache.usable(operator_cache.folder_of(NAME), NAME)


@pytest.mark.train
def test_an_operator_that_does_not_load_is_recompiled(load: Callable[[], Any], tmp_path: Path) -> None:
    folder = operator_cache.folder_of(NAME)
    (folder / f"{NAME}.so").write_bytes(b"\x7fELF and nothing else")
    operator_cache.stamp(folder, NAME)
    assert load().__name__ == NAME
    assert phases(tmp_path) == [operator_cache.PHASE, "starting"]


@pytest.mark.train
def test_waiting_for_another_compiler_is_reported(load: Callable[[], Any], tmp_path: Path) -> None:
    load()
    (tmp_path / "events.jsonl").write_bytes(b"")
    with ExitStack() as held:
        held.enter_context(operator_cache.alone(operator_cache.folder_of(NAME)))
        waiting = threading.Thread(target=load)
        waiting.start()
        eventually(lambda: said(tmp_path, Progress))
        assert phases(tmp_path) == [operator_cache.PHASE]
    waiting.join()
    assert phases(tmp_path) == [operator_cache.PHASE, "starting"]


@pytest.mark.train
@pytest.mark.nightly
@table("stage", ("zero2", "zero3"))
def test_offloaded_training_needs_no_compiler(
    own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    trained = start(
        tmp_path / stage,
        make_model(tmp_path / "model"),
        make_data(tmp_path / "rows.jsonl"),
        strategy=stage,
        num_processes=2,
        offload_optimizer="cpu",
    )
    assert trained.finish() == 0, trained.log()
    assert not list(own_folder.rglob("*.so"))


def test_operators_are_cached_by_version_unless_a_folder_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(operator_cache.ROOT_VARIABLE, "/named")
    operator_cache.use_own_folder()
    assert os.environ[operator_cache.ROOT_VARIABLE] == "/named"
    monkeypatch.delenv(operator_cache.ROOT_VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    operator_cache.use_own_folder()
    assert os.environ[operator_cache.ROOT_VARIABLE].startswith("/cache/lathe/operators-")


@pytest.mark.train
def test_zero_on_a_cpu_needs_no_compiler(own_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DeepSpeed would compile an operator that only inference uses before the first run on a machine."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    script = (
        "from pathlib import Path\n"
        "from training.ranks.deepspeed_operators import reuse_operators\n"
        "from training.reports.report import Report\n"
        f"reuse_operators(Report(Path({str(tmp_path)!r}), rank=0))\n"
        "import deepspeed, torch\n"
        "deepspeed.init_distributed('gloo')\n"
        "model = torch.nn.Linear(4, 1)\n"
        "optimizer = torch.optim.AdamW(model.parameters())\n"
        "config = {'train_micro_batch_size_per_gpu': 1, 'zero_optimization': {'stage': 2}, 'zero_allow_untested_optimizer': True}\n"
        "engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=config)\n"
        "engine.backward(engine(torch.ones(1, 4)).sum())\n"
        "engine.step()\n"
    )
    variables = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    done = run([sys.executable, "-c", script], env=os.environ | variables, text=True)
    assert done.returncode == 0, done.stderr
    assert not list(own_folder.rglob("*.so"))
