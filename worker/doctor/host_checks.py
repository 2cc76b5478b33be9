"""Checks of the machine around the GPUs: packages, memory, files, disk, clock and services."""

import os
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import requires
from pathlib import Path

import httpx
import psutil
from packaging.requirements import Requirement

from training.units import byte_size
from worker.doctor.finding import Finding, State, judged
from worker.machine import devices, programs
from worker.machine.gpus import Gpu
from worker.machine.measurement import version_of
from worker.machine.programs import ProgramError
from worker.services import broker_state, database_facts
from worker.settings import ROOT, SettingsError, get_settings, hub_is_offline
from worker.store import database
from worker.store.database import UNREACHABLE

_GIB, _MIB = 2**30, 2**20
_SHARED = "/dev/shm"  # noqa: S108 only its size is asked for
_SHARED_BYTES, _OPEN_FILES, _ROOM_BYTES = _GIB, 4096, 20 * _GIB
_WRITTEN_BYTES, _SLOW_BYTES = 64 * _MIB, 50 * _MIB
_CLOCK_SECONDS, _HUB_SECONDS = 5.0, 5.0
_VLLM_SECONDS = 300.0  # it imports torch, perhaps from a slow disk
_OPTIONAL = ("flash_attn", "bitsandbytes", "torchao")  # packages that runs use if they are there
_FLASH_CAPABILITY = (8, 0)
_VLLM_CAPABILITY = (7, 5)  # vLLM's requirements since 0.21
_TRACKERS = {  # the variable with a tracker's address, that which says that it is used, and the usual address
    "W&B": ("WANDB_BASE_URL", "WANDB_API_KEY", "https://api.wandb.ai"),
    "MLflow": ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_URI", ""),
}


def packages() -> Iterator[Finding]:
    """Whether the training packages are there in the versions that Lathe needs."""
    wrong = []
    for text in requires("lathe-workbench") or ():
        needed = Requirement(text)
        if needed.marker and not needed.marker.evaluate({"extra": "train"}):
            continue
        installed = version_of(needed.name)
        if installed is None or not needed.specifier.contains(installed, prereleases=True):
            wrong.append(f"{needed.name} {installed or 'is missing'}, needed {needed.specifier or 'in any version'}")
    said = "; ".join(wrong) or f"complete, Lathe {version_of('lathe-workbench')}"
    yield judged("packages", said, failed=bool(wrong), cure="pip install 'lathe-workbench[train]'")


def processors() -> Iterator[Finding]:
    """The cores that this process may use."""
    cores, count = devices.cores(), len(_usable())
    cure = "Tokenizing and loading rows need a core or more for each GPU."
    yield judged("cores", f"{cores} for {count} GPUs" if count else str(cores), warned=cores < count, cure=cure)


def optional_packages() -> Iterator[Finding]:
    """Packages that runs use if they are installed, and whether they fit the cards."""
    least = min((gpu.capability for gpu in _usable()), default=_FLASH_CAPABILITY)
    for name in _OPTIONAL:
        if version := version_of(name):
            misfit = name == "flash_attn" and least < _FLASH_CAPABILITY
            said = f"{version} needs compute capability 8.0, a card has {least[0]}.{least[1]}" if misfit else version
            cure = "Leave attention at auto: it uses another kernel there."
            yield judged(name.replace("_", "-"), said, warned=misfit, cure=cure)


def vllm() -> Iterator[Finding]:
    """Whether the program of LATHE_VLLM_COMMAND starts, its version, and whether it fits the cards."""
    if not (words := shlex.split(get_settings().vllm_command)):
        return
    argv = [sys.executable, "-m", programs.VLLM.module, *words, "--version"]
    try:
        done = subprocess.run(
            argv, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, timeout=_VLLM_SECONDS, text=True, check=False
        )
        failed, output = bool(done.returncode), done.stderr if done.returncode else done.stdout
    except subprocess.TimeoutExpired:
        failed, output = True, f"no answer within {_VLLM_SECONDS:g} s"
    last = (output.strip().splitlines() or ["it printed nothing"])[-1]
    cure = "Install vLLM in an environment of its own and give its path in LATHE_VLLM_COMMAND. Until then transformers answers."
    least = min((gpu.capability for gpu in _usable()), default=_VLLM_CAPABILITY)
    if not failed and least < _VLLM_CAPABILITY:
        said = f"{last} needs compute capability 7.5, a card has {least[0]}.{least[1]}"
        yield Finding("vLLM", State.WARNING, said, "Remove LATHE_VLLM_COMMAND: transformers answers there.")
        return
    yield judged("vLLM", f"{words[0]} does not start: {last}" if failed else last, warned=failed, cure=cure)


def samples() -> Iterator[Finding]:
    """What can draw the samples of runs of grpo and distill here."""
    by_vllm = "or vLLM (generation: vllm)" if get_settings().vllm_command else "and vLLM with LATHE_VLLM_COMMAND"
    yield Finding("samples", State.OK, f"drawn by forward passes, {by_vllm}")


def memory() -> Iterator[Finding]:
    """Free host memory, beside that of the GPUs, which loading and saving pass through it."""
    host = psutil.virtual_memory()
    largest = max((gpu.memory_bytes for gpu in _usable()), default=0)
    cure = "A full fine-tuning that fills a GPU needs as much host memory to load and save; use LoRA, or add memory."
    said = f"{byte_size(host.available)} of {byte_size(host.total)} free"
    yield judged("memory", said, warned=host.available < max(largest, 2 * _GIB), cure=cure)


def shared_memory() -> Iterator[Finding]:
    """The shared memory by which ranks of a machine exchange data."""
    try:
        room = shutil.disk_usage(_SHARED)
    except OSError:
        return
    cure = "In a container: --shm-size=8g (docker run), shm_size: 8gb (Compose), or an emptyDir with medium Memory (Kubernetes)."
    yield judged(_SHARED, f"{byte_size(room.free)} free", warned=room.free < _SHARED_BYTES, cure=cure)


def open_files() -> Iterator[Finding]:
    """How many files and connections a process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = soft if hard == resource.RLIM_INFINITY else hard  # Lathe raises the soft limit
    yield judged(
        "open files", f"{most:,}", warned=0 <= most < _OPEN_FILES, cure=f"Raise it: ulimit -n {_OPEN_FILES * 4}"
    )


def disk() -> Iterator[Finding]:
    """Room and speed of the data folder's disk."""
    folder = get_settings().data_dir
    try:
        folder.mkdir(parents=True, exist_ok=True)
        room, seconds = shutil.disk_usage(folder), _seconds_to_write(folder)
    except OSError as error:
        yield Finding(
            "disk", State.FAILED, f"{folder} cannot be written: {error.strerror}.", "Set LATHE_DATA_DIR to another one."
        )
        return
    speed = _WRITTEN_BYTES / max(seconds, 1e-6)
    said = f"{byte_size(room.free)} free in {folder}, written at {byte_size(speed)}/s"
    cure = "Checkpoints are written there: free space, or set LATHE_DATA_DIR to a larger or faster disk."
    yield judged("disk", said, warned=room.free < _ROOM_BYTES or speed < _SLOW_BYTES, cure=cure)


def _seconds_to_write(folder: Path) -> float:
    block = os.urandom(_MIB)
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
        began = time.monotonic()
        for _ in range(_WRITTEN_BYTES // _MIB):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return time.monotonic() - began


def confinement() -> Iterator[Finding]:
    """What of the jail of rewards and of readers of files this kernel, or the container, does not give."""
    cure = "Use Linux 5.13 or later with Landlock, and allow user namespaces and seccomp in containers; docs/evaluation.md."
    try:
        found = programs.run_for_json(programs.JAIL, [])
    except ProgramError as error:
        yield Finding("confinement", State.WARNING, f"could not be tried: {error}", cure)
        return
    said = (
        f"without {', '.join(found['missing'])}"
        if found["missing"]
        else f"seccomp, Landlock {found['landlock']}, namespaces"
    )
    yield judged("confinement", said, warned=bool(found["missing"]), cure=cure)


def compiler() -> Iterator[Finding]:
    """A C++ compiler, with which DeepSpeed builds operators on GPUs."""
    path = shutil.which("g++") or shutil.which("c++")
    cure = "On Debian: sudo apt-get install -y g++. ZeRO with CPU offload on GPUs needs it."
    yield judged("C++ compiler", path or "none", warned=path is None and bool(_usable()), cure=cure)


def services() -> Iterator[Finding]:
    """Database and broker, and whether the database's clock agrees with this machine's."""
    try:
        facts = database_facts()
        with database.read_everything() as session:
            ahead = database.now(session=session) - time.time()
    except UNREACHABLE as error:
        cure = "Check LATHE_DATABASE_URL, and that its server runs."
        yield Finding("database", State.FAILED, f"does not answer: {str(error).splitlines()[0]}", cure)
    else:
        yield Finding("database", State.OK, f"{facts.kind} {facts.version}, {facts.latency_ms:.1f} ms")
        cure = "Let both machines set their clocks by NTP: leases and times on the pages are by the database's."
        yield judged("clock", f"{abs(ahead):.1f} s from the database's", warned=abs(ahead) > _CLOCK_SECONDS, cure=cure)
    state = broker_state()
    cure = "Start Lathe (`lathe up`), or check LATHE_BROKER_URL. Without it, runs start some seconds later."
    yield judged("broker", "answers" if state.reachable else "does not answer", warned=not state.reachable, cure=cure)


def hub() -> Iterator[Finding]:
    """Whether models can be downloaded."""
    if hub_is_offline():
        yield Finding("hub", State.OK, "HF_HUB_OFFLINE is set: only models on this machine are used")
        return
    cure = "Set HTTPS_PROXY or HF_ENDPOINT, or use models in a folder and set HF_HUB_OFFLINE=1."
    yield _reached("hub", os.environ.get("HF_ENDPOINT", "https://huggingface.co"), cure)


def trackers() -> Iterator[Finding]:
    """Whether the trackers answer to which this environment sends metrics."""
    for name, (variable, used, usual) in _TRACKERS.items():
        address = os.environ.get(variable, usual)
        if os.environ.get(used) and address.startswith("http"):
            yield _reached(name, address, f"Set HTTPS_PROXY, or correct {variable}. Runs train without it and say so.")


def _reached(subject: str, address: str, cure: str) -> Finding:
    try:
        httpx.head(address, timeout=_HUB_SECONDS, follow_redirects=True)
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        return Finding(subject, State.WARNING, f"{address} does not answer: {error}", cure)
    return Finding(subject, State.OK, f"{address} answers")


def _usable() -> list[Gpu]:
    try:
        return devices.usable_gpus()
    except SettingsError:
        return []
