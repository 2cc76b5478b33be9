"""Checks of the driver and the GPUs, and of what torch does with them."""

import re
import statistics
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pynvml

from training.units import byte_size
from worker.doctor.finding import Finding, State, judged
from worker.machine import device_trial, devices
from worker.machine.gpus import Gpu, driver_problem, handle_of, nvml, used_by_others
from worker.settings import SettingsError

_SLOW_FACTOR = 3.0
_XID = re.compile(r"NVRM: Xid \((?P<gpu>[^)]+)\): (?P<number>\d+),(?P<words>.*)")
_NOT_USED = {
    "rocm": "AMD GPUs (ROCm): untested, and Lathe finds GPUs by NVIDIA's driver",
    "mps": "Apple's GPU (MPS): neither DeepSpeed nor NCCL runs there",
}
"""Accelerators by torch's names, besides CUDA's."""


def driver() -> Iterator[Finding]:
    """Whether NVIDIA's driver answers, and its version."""
    if problem := driver_problem():
        yield Finding(
            "driver", State.FAILED, problem, f"To train on the CPU meanwhile, set LATHE_DEVICES={devices.CPU}."
        )
        return
    try:
        with nvml():
            yield _driver_version()
    except pynvml.NVMLError:
        yield Finding("driver", State.OK, "none of NVIDIA's: runs train on the CPU")


def _driver_version() -> Finding:
    try:
        return Finding("driver", State.OK, f"NVIDIA {pynvml.nvmlSystemGetDriverVersion()}")
    except pynvml.NVMLError as error:
        return Finding("driver", State.WARNING, f"does not tell its version: {error}", "Run nvidia-smi; it says more.")


def gpus() -> Iterator[Finding]:
    """Each GPU of this worker: whether it answers, its errors of memory, and who uses it."""
    try:
        chosen, problem = devices.chosen_gpus(), devices.problem()
    except SettingsError as error:
        yield Finding("devices", State.FAILED, str(error))
        return
    for gpu in chosen:
        yield _gpu(gpu)
    if not chosen and problem and not driver_problem():
        yield Finding("devices", State.FAILED, problem)


def _gpu(gpu: Gpu) -> Finding:
    subject = f"GPU {gpu.number}"
    if gpu.problem:
        return Finding(subject, State.FAILED, gpu.problem)
    said = f"{gpu.name}, {byte_size(gpu.memory_bytes)}"
    if errors := _memory_errors(gpu):
        cure = f"Reset it (nvidia-smi --gpu-reset -i {gpu.index}); if they come back, replace the card."
        return Finding(subject, State.FAILED, f"{said}: {errors} uncorrected memory errors since its last reset", cure)
    others = used_by_others(gpu)
    cure = "Ask who uses it; no run gets it meanwhile, unless LATHE_DEVICES names it."
    return judged(subject, f"{said}: {others}" if others else said, warned=bool(others), cure=cure)


def _memory_errors(gpu: Gpu) -> int:
    with suppress(pynvml.NVMLError), nvml():
        kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        return int(pynvml.nvmlDeviceGetTotalEccErrors(handle_of(gpu), kind, counter))
    return 0


def kernel_log() -> Iterator[Finding]:
    """The errors of GPUs (Xid) in the kernel's log since the machine started, the latest of each GPU."""
    if not devices.usable_gpus():
        return
    try:
        log = subprocess.run(["dmesg"], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        yield Finding("Xid", State.OK, "unknown: only root may read the kernel's log here (sudo dmesg | grep Xid)")
        return
    latest = {match["gpu"]: match for match in _XID.finditer(log)}
    cure = "NVIDIA's list of Xid errors says what the number means. If it comes back, reset or replace the card."
    for gpu, match in latest.items():
        yield Finding(f"Xid {match['number']}", State.WARNING, f"GPU at {gpu}: {match['words'].strip()}", cure)
    if not latest:
        yield Finding("Xid", State.OK, "none since the machine started")


def kernels() -> Iterator[Finding]:
    """What torch computes on each device, and how fast they reach each other, in a process of its own."""
    try:
        own = device_trial.idle_devices()
        answer = device_trial.tried(own, links=True)
    except SettingsError:
        return  # reported above
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        fix = "Install the training packages again: pip install 'lathe-workbench[train]'"
        yield Finding("torch", State.FAILED, f"cannot be tried: {error}", fix)
        return
    yield _torch(answer, sum("/cuda:" in device for device in own))
    yield from _other_accelerator(answer["accelerator"])
    for name, device in zip(own, answer["devices"], strict=False):
        yield _kernels(name.rpartition("/")[2], device)
    yield from _links(answer["links"])


def _torch(answer: dict[str, Any], leased: int) -> Finding:
    return judged(
        "torch", device_trial.seen(answer, leased), failed=answer["gpus"] < leased, cure=device_trial.cure(answer)
    )


def _other_accelerator(kind: str) -> Iterator[Finding]:
    """An accelerator that Lathe does not use, and why."""
    if kind and kind != "cuda":
        cure = "Train on a machine with NVIDIA GPUs, or on the CPU."
        yield Finding(
            "accelerator", State.WARNING, f"{_NOT_USED.get(kind, f'{kind}: untested')}; runs do not use it", cure
        )


def _kernels(name: str, device: dict[str, Any]) -> Finding:
    problems = device_trial.words(device)
    cure = "A card without bf16 trains with precision fp16. Else this torch has no kernels for the card: install another one."
    said = problems or f"computes in fp32, bf16 and fp16 ({device['seconds']:.1f} s)"
    serious = device_trial.is_serious(device)
    return judged(f"kernels on {name}", said, failed=serious, warned=bool(problems), cure=cure)


def _links(found: list[dict[str, Any]]) -> Iterator[Finding]:
    """The pairs of devices, those that are much slower than the others by name."""
    if not found:
        return
    usual = statistics.median(link["bandwidth"] for link in found)
    slow = [link for link in found if link["bandwidth"] * _SLOW_FACTOR < usual]
    said = f"{len(found)} pairs, median {byte_size(usual)}/s"
    named = ", ".join(f"{link['first']}-{link['second']} {byte_size(link['bandwidth'])}/s" for link in slow)
    cure = "Look at `nvidia-smi topo -m` and `nvidia-smi nvlink -s`; a link may be down."
    yield judged("links", f"{said}; slow: {named}" if slow else said, warned=bool(slow), cure=cure)
