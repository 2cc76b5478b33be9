"""DeepSpeed's operators: what a killed process leaves behind stops nobody, and what cannot be compiled is said before."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from training import compiling
from training.config import RunConfig
from training.failure import UserError


def test_the_lock_of_a_process_that_was_killed_is_taken_away(tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with compiling._alone(tmp_path):
        assert not (tmp_path / "lock").exists()


def test_the_lock_of_a_process_that_compiles_is_waited_for_until_it_is_killed(tmp_path: Path) -> None:
    hold = "import os, sys, time; os.open(sys.argv[1], os.O_CREAT | os.O_EXCL); print(flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", hold, tmp_path / "lock"], stdout=subprocess.PIPE) as compiler:
        assert compiler.stdout is not None
        compiler.stdout.readline()
        entered = threading.Event()
        waiting = threading.Thread(target=_enter, args=(tmp_path, entered))
        waiting.start()
        assert not entered.wait(0.5)
        compiler.kill()
    waiting.join(30)
    assert entered.is_set()


def _enter(folder: Path, entered: threading.Event) -> None:
    with compiling._alone(folder):
        entered.set()


def test_offloading_to_a_disk_that_cannot_be_written_names_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    config = RunConfig(model="m", data="d", offload_param="nvme", nvme_path=str(tmp_path / "file/nvme"))
    with pytest.raises(UserError, match="nvme_path"):
        compiling.refuse_unfit_nvme(config)


@pytest.mark.train
def test_offloading_to_nvme_without_libaio_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    monkeypatch.setenv("CC", "false")  # no compiler, no operator
    config = RunConfig(model="m", data="d", offload_optimizer="nvme", nvme_path=str(tmp_path))
    with pytest.raises(UserError) as raised:
        compiling.refuse_unfit_nvme(config)
    assert raised.value.field == "offload_optimizer" and "libaio-dev" in raised.value.fix
