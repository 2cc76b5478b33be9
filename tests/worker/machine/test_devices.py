"""The devices of a machine. Test machines may have no GPU, so the tests replace NVML's answer."""

import pytest
from sqlmodel import Session

from worker.machine import devices, free_devices
from worker.machine.devices import Gpu
from worker.machine.process_identity import hostname
from worker.settings import SettingsError, get_settings
from worker.store import claims
from worker.store import database as db
from worker.store.tables import Run

GIB = 2**30
FOUR = tuple(Gpu(index, f"GPU-{index}abc", "NVIDIA A100", 80 * GIB, (8, 0)) for index in range(4))
HOST = hostname()


@pytest.fixture
def gpus(bare_home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "all_gpus", lambda: FOUR)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def allow(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("LATHE_DEVICES", text)
    get_settings.cache_clear()


@pytest.mark.usefixtures("gpus")
def test_all_gpus_are_used_by_default() -> None:
    assert devices.own_devices() == [f"{HOST}/cuda:{index}" for index in range(4)]
    machine = devices.machine()
    assert (machine.kind, machine.devices, machine.memory_bytes[0], machine.bf16) == ("cuda", 4, 80 * GIB, True)


@pytest.mark.usefixtures("gpus")
def test_only_the_configured_gpus_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, " 3, 1")
    assert devices.own_devices() == [f"{HOST}/cuda:1", f"{HOST}/cuda:3"]


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize(("visible", "used"), [("2", [2]), ("GPU-1abc,0", [0, 1]), ("", [])])
def test_gpus_hidden_by_cuda_visible_devices_are_not_used(
    monkeypatch: pytest.MonkeyPatch, visible: str, used: list[int]
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert [gpu.index for gpu in devices.usable_gpus()] == used


@pytest.mark.usefixtures("gpus")
def test_the_cpu_is_one_device_and_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, "CPU")
    assert devices.own_devices() == [f"{HOST}/cpu"]
    assert devices.machine().kind == "cpu"


@pytest.mark.usefixtures("gpus")
@pytest.mark.parametrize("text", ["4", "0,7", "all"])
def test_a_missing_gpu_is_refused_with_a_list_of_the_existing_ones(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    allow(monkeypatch, text)
    with pytest.raises(SettingsError, match=f"LATHE_DEVICES .given: '{text}'.*GPU 0, 1, 2, 3"):
        devices.own_devices()


def test_older_gpus_have_no_bf16(bare_home: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "all_gpus", lambda: (Gpu(0, "GPU-0", "Tesla T4", 16 * GIB, (7, 5)),))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert not devices.machine().bf16


def test_a_run_takes_one_gpu_per_process_or_the_whole_cpu() -> None:
    gpus = ["h/cuda:0", "h/cuda:2", "h/cuda:3"]
    assert devices.choose(2, gpus) == ["h/cuda:0", "h/cuda:2"]
    assert devices.choose(4, gpus) is None
    assert devices.choose(4, ["h/cpu"]) == ["h/cpu"]
    assert devices.choose(1, []) is None


@pytest.mark.usefixtures("home", "gpus")
def test_a_device_is_free_before_and_after_a_lease() -> None:
    def free(session: Session) -> list[str]:
        return [device.rpartition(":")[2] for device in free_devices.free(session=session)]

    with db.write() as session:
        session.add(Run(id="r", name="r", config={"model": "m", "data": "d"}, created_at=0, queued_at=0))
        session.flush()
        taken = [f"{HOST}/cuda:0", f"{HOST}/cuda:2"]
        run = claims.claim(session=session, run_id="r", owner="h:1:1", devices=taken, lease_seconds=9)
        assert run is not None
        assert free(session) == ["1", "3"]
        claims.requeue(session=session, run_id="r", attempt=run.attempt, reason="")
        assert free(session) == ["0", "1", "2", "3"]
