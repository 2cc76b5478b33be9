"""What a machine does with its GPUs, the faulty ones too, by a stand-in for NVIDIA's library."""

import os

import pytest
from nvml import GIB, LOST, MISMATCH, NO_PERMISSION, NOT_LOADED, RESET, UNKNOWN, gpu, install, needs_compiler
from subtest_table import table

from worker.machine import devices, free_devices, gpus, measurement, overload
from worker.machine.process_identity import hostname
from worker.settings import SettingsError, get_settings
from worker.store import database

pytestmark = needs_compiler
FOUR = [gpu(number) for number in range(4)]
MIG = [gpu(0), gpu(1), "mig 0 H100~MIG~3g.40gb 42949672960 MIG-aa", "mig 0 H100~MIG~3g.40gb 42949672960 MIG-bb"]
NAME, MEMORY, HANDLE = "nvmlDeviceGetName", "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetHandleByIndex"


@pytest.fixture
def nvml(bare_home, tmp_path, monkeypatch):
    yield lambda *lines: install(monkeypatch, tmp_path / "nvml", *lines)
    gpus._listed.cache_clear()


def settings(monkeypatch, **values):
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()


def own():
    return [name.removeprefix(f"{hostname()}/") for name in devices.own_devices()]


@table(
    ("fault", "reason"),
    [
        (f"fault 1 {HANDLE} {LOST}", "GPU is lost. It has fallen off the bus: reboot the machine."),
        (f"fault 1 {MEMORY} {LOST}", "GPU is lost"),
        (f"fault 1 {MEMORY} {NO_PERMISSION}", "Let Lathe's user open the files"),
        (f"fault 1 {NAME} {UNKNOWN}", "Unknown Error. Look into the kernel log"),
        (f"fault 1 nvmlDeviceGetUUID {RESET}", "nvidia-smi --gpu-reset -i 1"),
        (f"fault 1 nvmlDeviceGetCudaComputeCapability {LOST}", "GPU is lost"),
        (f"fault 1 nvmlDeviceGetMigMode {UNKNOWN}", "Unknown Error"),
    ],
)
def test_a_faulty_gpu_is_left_out_and_named_and_the_others_are_used(nvml, fault, reason):
    nvml(*FOUR, fault)
    assert own() == ["cuda:0", "cuda:2", "cuda:3"]
    assert devices.problem() == ""
    broken = measurement.measured_devices()[1]
    assert (broken.name.rpartition("/")[2], reason in broken.problem) == ("cuda:1", True), broken


@table(
    ("lines", "reason"),
    [
        ([*FOUR, f"init {MISMATCH}"], "The driver was updated: reboot the machine"),
        ([*FOUR, f"init {NOT_LOADED}"], "Load the driver"),
        ([*FOUR, "init 999"], "NVIDIA's driver does not answer"),
        ([gpu(0), f"fault 0 {HANDLE} {LOST}"], "GPU 0: GPU is lost"),
    ],
)
def test_a_machine_without_a_usable_gpu_does_not_train_on_its_cpu_without_a_word(nvml, lines, reason):
    nvml(*lines)
    assert own() == []
    assert reason in devices.problem()
    overload.Gauge().take(0.0, 0.0)
    assert reason in overload.here() and reason in overload.in_words()


def test_with_a_faulty_driver_the_cpu_is_used_if_it_was_chosen(nvml, monkeypatch):
    nvml(*FOUR, f"init {MISMATCH}")
    settings(monkeypatch, LATHE_DEVICES="cpu")
    assert (own(), devices.problem()) == (["cpu"], "")
    overload.Gauge().take(0.0, 0.0)
    assert overload.here() == ""


def test_without_gpus_the_cpu_is_used(nvml):
    nvml()
    assert (own(), devices.problem()) == (["cpu"], "")


@table(
    ("visible", "used"),
    [
        ("0,-1,2", ["cuda:0"]),  # CUDA stops at the first that does not exist
        ("2,0", ["cuda:0", "cuda:2"]),
        ("GPU-3", ["cuda:3"]),
        ("GPU-", []),  # of several
        ("9", []),
        ("MIG-aa", []),
    ],
)
def test_cuda_visible_devices_is_read_as_cuda_reads_it(nvml, monkeypatch, visible, used):
    nvml(*FOUR)
    settings(monkeypatch, CUDA_VISIBLE_DEVICES=visible)
    assert own() == used
    assert bool(devices.problem()) == (not used)


@table(("hidden",), [("",), ("-1",), ("void",), ("NoDevFiles",)])
def test_gpus_that_are_hidden_on_purpose_are_no_problem(nvml, monkeypatch, hidden):
    nvml(*FOUR)
    settings(monkeypatch, CUDA_VISIBLE_DEVICES=hidden)
    assert (own(), devices.problem()) == (["cpu"], "")


def test_instances_take_the_place_of_their_gpu_and_are_seen_by_their_uuid(nvml, monkeypatch):
    nvml(*MIG)
    assert own() == ["cuda:0.0", "cuda:0.1", "cuda:1"]
    leased = devices.own_devices()
    assert devices.variables(leased[1:2])["CUDA_VISIBLE_DEVICES"] == "MIG-bb"
    assert devices.variables(leased[2:])["CUDA_VISIBLE_DEVICES"] == "1"
    assert devices.machine(leased[:1]).memory_bytes == [40 * 2**30]
    first = measurement.measured_devices()[0]
    assert (first.label, first.memory_bytes, first.problem) == ("H100 MIG 3g.40gb", 40 * 2**30, "")
    settings(monkeypatch, LATHE_DEVICES="0.1, GPU-1")
    assert own() == ["cuda:0.1", "cuda:1"]
    settings(monkeypatch, LATHE_DEVICES="mig-AA")
    assert own() == ["cuda:0.0"]


def test_a_name_that_no_gpu_has_is_refused_with_those_that_exist(nvml, monkeypatch):
    nvml(*MIG)
    settings(monkeypatch, LATHE_DEVICES="0")
    with pytest.raises(SettingsError, match=r"GPU 0\.0, 0\.1, 1"):
        devices.own_devices()
    overload.Gauge().take(0.0, 0.0)
    assert "LATHE_DEVICES" in overload.here()


def test_a_gpu_that_others_use_is_not_given_to_a_run_unless_it_is_named(nvml, home, monkeypatch):
    nvml(*FOUR, f"process 1 {os.getpid()} {61 * GIB}", f"process 2 1 {GIB}")

    def free():
        with database.read() as session:
            return [name.rpartition(":")[2] for name in free_devices.free(session=session)]

    assert free() == ["0", "2", "3"]
    said = measurement.measured_devices()[1].others
    assert "61.0 GiB of its memory are in use by" in said and f"process {os.getpid()} of " in said
    settings(monkeypatch, LATHE_DEVICES="0,1")
    assert free() == ["0", "1"]


def test_a_gpu_that_is_lost_while_the_worker_runs_is_left_out(nvml):
    nvml(*FOUR)
    assert len(own()) == 4
    nvml(*FOUR, f"fault 3 {HANDLE} {LOST}")
    assert own() == ["cuda:0", "cuda:1", "cuda:2"]
