"""`lathe doctor`, on this machine and on stand-ins of others."""

import nvml
import pytest
from commands import answer, lathe
from receivers import hooks
from subtest_table import table

from worker.doctor import device_checks, host_checks
from worker.doctor.finding import State
from worker.machine import device_trial, gpus, overload
from worker.queue.reaper import try_devices
from worker.settings import get_settings
from worker.store import database, machines

WORKS = {"problems": {}, "seconds": 0.1}
BROKEN = {
    "problems": {"float32": "CUDA error: no kernel image is available for execution on the device"},
    "seconds": 0.1,
}
NO_BF16 = {"problems": {"bfloat16": "not supported"}, "seconds": 0.1}


@pytest.fixture
def four_gpus(home, tmp_path, monkeypatch):
    nvml.install(monkeypatch, tmp_path / "nvml", *(nvml.gpu(number) for number in range(4)))
    yield lambda *lines: nvml.install(
        monkeypatch, tmp_path / "nvml", *(nvml.gpu(number) for number in range(4)), *lines
    )
    gpus._listed.cache_clear()


@pytest.mark.slow
def test_this_machine_is_checked_with_a_cure_for_each_line_that_is_not_ok(home, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = {one["subject"]: one for one in answer("doctor")}
    assert {"packages", "driver", "torch", "memory", "disk", "database", "broker", "hub"} <= set(found)
    assert all(one["cure"] for one in found.values() if one["state"] != "ok")
    assert found["hub"]["said"].startswith("HF_HUB_OFFLINE is set")


@nvml.needs_compiler
def test_gpus_that_torch_does_not_see_are_an_error_with_its_cure(four_gpus, monkeypatch):
    four_gpus(f"fault 1 nvmlDeviceGetMemoryInfo {nvml.LOST}")
    monkeypatch.setattr(
        device_trial,
        "tried",
        lambda leased, **_: {"torch": "2.13", "cuda": "13.0", "gpus": 0, "accelerator": "", "devices": [], "links": []},
    )
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    result = lathe("doctor")
    assert result.exit_code == 1
    assert "failed   GPU 1" in result.stdout and "GPU is lost" in result.stdout
    assert "2.13, built with CUDA 13.0, sees 0 of 3 GPUs" in result.stdout
    assert "CUDA 13.0 needs a driver of 580 or newer." in result.stdout


@nvml.needs_compiler
def test_a_worker_starts_no_runs_while_torch_does_not_see_its_gpus(four_gpus):
    """The real program: this torch has no CUDA, or no driver to talk to."""
    gauge = overload.Gauge()
    try_devices(gauge)
    gauge.take(0.0, 0.0)
    assert "sees 0 of 4 GPUs" in overload.here()


@nvml.needs_compiler
@table(
    ("devices", "expected"),
    [([WORKS] * 4, set()), ([WORKS, BROKEN, WORKS, WORKS], {"1"}), ([NO_BF16] * 4, set())],
)
def test_a_gpu_that_computes_nothing_is_put_aside_when_the_worker_starts(four_gpus, monkeypatch, devices, expected):
    monkeypatch.setattr(
        device_trial,
        "tried",
        lambda leased, **_: {"torch": "2", "cuda": "12.8", "gpus": 4, "devices": devices, "links": []},
    )
    gauge = overload.Gauge()
    try_devices(gauge)
    with database.write() as session:
        names = machines.cordoned(session=session)
        assert ({name.rpartition(":")[2] for name in names}, gauge.trial) == (expected, "")
        for name in names:
            machines.uncordon(session=session, host=name)


@nvml.needs_compiler
def test_gpus_that_are_in_use_are_not_tried(four_gpus, monkeypatch):
    """A run goes on while its worker restarts: a trial would find no memory and put its GPU aside."""
    four_gpus(f"process 1 1 {70 * nvml.GIB}")
    tried = []

    def answer(leased, **_):
        tried.extend(leased)
        return {"torch": "2", "cuda": "12.8", "gpus": 3, "devices": [WORKS] * 3, "links": []}

    monkeypatch.setattr(device_trial, "tried", answer)
    assert device_trial.trial() == device_trial.Trial()
    assert [name.rpartition(":")[2] for name in tried] == ["0", "2", "3"]


def test_a_link_that_is_much_slower_than_the_others_is_named():
    links = [{"first": 0, "second": 1, "latency": 1e-5, "bandwidth": 200e9}] * 5
    slow = {"first": 2, "second": 3, "latency": 1e-5, "bandwidth": 10e9}
    (fine,), (bad,) = device_checks._links(links), device_checks._links([*links, slow])
    assert (fine.state, bad.state) == (State.OK, State.WARNING)
    assert "2-3" in bad.said and "nvlink" in bad.cure


def test_an_accelerator_that_lathe_does_not_use_is_named_with_the_reason():
    assert [list(device_checks._other_accelerator(kind)) for kind in ("", "cuda")] == [[], []]
    for kind, reason in (("rocm", "AMD GPUs (ROCm): untested"), ("mps", "neither DeepSpeed nor NCCL"), ("xpu", "xpu")):
        (found,) = device_checks._other_accelerator(kind)
        assert found.state is State.WARNING and reason in found.said and found.cure


def test_a_missing_package_is_an_error(monkeypatch):
    monkeypatch.setattr(host_checks, "version_of", lambda name: None if name == "peft" else "999")
    (found,) = host_checks.packages()
    assert found.state is State.FAILED and "peft is missing" in found.said


def test_the_program_of_vllm_is_tried(home, tmp_path, monkeypatch):
    from worker.settings import get_settings

    def found(command):
        monkeypatch.setenv("LATHE_VLLM_COMMAND", command)
        get_settings.cache_clear()
        return list(host_checks.vllm())

    script = tmp_path / "vllm"
    script.write_text('#!/bin/sh\necho "INFO loading"\necho "$1 0.32.0"\n')
    script.chmod(0o700)
    assert found("") == []
    assert "LATHE_VLLM_COMMAND" in next(host_checks.samples()).said
    assert [(one.state, one.said) for one in found(str(script))] == [(State.OK, "--version 0.32.0")]
    assert "generation: vllm" in next(host_checks.samples()).said
    (missing,) = found("/no/vllm")
    assert (
        missing.state is State.WARNING and "/no/vllm does not start: FileNotFoundError" in missing.said and missing.cure
    )
    monkeypatch.setattr(host_checks, "_VLLM_SECONDS", 0.1)
    script.write_text("#!/bin/sh\nexec sleep 1000\n")
    (slow,) = found(str(script))
    assert slow.state is State.WARNING and "does not start: no answer within 0.1 s" in slow.said and slow.cure


@nvml.needs_compiler
def test_the_latest_xid_of_each_gpu_is_named_from_the_kernel_log(four_gpus, tmp_path, monkeypatch):
    four_gpus()
    log = tmp_path / "dmesg"
    log.write_text(
        "#!/bin/sh\ncat <<'END'\n"
        "[  10.1] NVRM: Xid (PCI:0000:65:00): 13, pid=7, Graphics Exception\n"
        "[  99.2] NVRM: Xid (PCI:0000:65:00): 79, pid=7, GPU has fallen off the bus.\n"
        "[  99.3] usb 1-1: new device\nEND\n"
    )
    log.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    [found] = device_checks.kernel_log()
    assert (found.subject, found.state) == ("Xid 79", State.WARNING) and found.cure
    assert "PCI:0000:65:00" in found.said and "fallen off the bus" in found.said
    log.write_text("#!/bin/sh\nexit 1\n")
    [unknown] = device_checks.kernel_log()
    assert unknown.state is State.OK and "only root" in unknown.said


def test_trackers_that_are_used_are_asked(monkeypatch):
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert list(host_checks.trackers()) == []
    with hooks() as receiver:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", receiver.url)
        [answers] = host_checks.trackers()
    assert (answers.subject, answers.state) == ("MLflow", State.OK)
    [silent] = host_checks.trackers()  # the server has ended
    assert silent.state is State.WARNING and "MLFLOW_TRACKING_URI" in silent.cure and receiver.url in silent.said


@nvml.needs_compiler
def test_a_card_that_is_too_old_for_vllm_is_named(home, tmp_path, monkeypatch):
    nvml.install(monkeypatch, tmp_path / "nvml", nvml.gpu(0, capability="7 0"))
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\necho 0.32.0\n")
    program.chmod(0o755)
    monkeypatch.setenv("LATHE_VLLM_COMMAND", str(program))
    get_settings.cache_clear()
    [found] = host_checks.vllm()
    gpus._listed.cache_clear()
    assert found.state is State.WARNING and "a card has 7.0" in found.said and "transformers" in found.cure
