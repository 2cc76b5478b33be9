"""Writes the records of a rank to events.jsonl: phases, metrics, failures; and reads the memory and sensors of its GPU."""

import contextlib
import os
import resource
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pynvml

from training.errors import UserError, is_out_of_memory
from training.run_folder import full_disk
from training.run_folder.events import (
    Event,
    EventWriter,
    Failed,
    Metrics,
    Note,
    PhaseStarted,
    Progress,
    RankLeft,
    RankStarted,
)
from training.run_folder.paths import events_file

if TYPE_CHECKING:
    from training.reports.step_position import StepTracker

_LESS_MEMORY = (
    "Set on_out_of_memory to step_down, or halve micro_batch_size and double gradient_accumulation_steps; "
    "gradient_checkpointing, a shorter max_length and ZeRO also save memory."
)
_SECONDS_BETWEEN_SAMPLES = 1.0


class GpuSensors:
    """Reads the sensors of the current CUDA device. Without NVML, and for what a device does not measure, there are no values."""

    def __init__(self) -> None:
        self._handle: Any = None
        with suppress(pynvml.NVMLError, AttributeError, RuntimeError):
            self._handle = _handle()
        self._millijoules = self._counter()

    def read(self) -> dict[str, float | None]:
        """Returns gpu_utilization in percent, gpu_temperature in °C and gpu_power in watts."""
        values: dict[str, float | None] = {}
        if self._handle is None:
            return values
        sensors: dict[str, Callable[[Any], float]] = {
            "gpu_utilization": lambda handle: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu),
            "gpu_temperature": lambda handle: float(
                pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)
            ),
            "gpu_power": lambda handle: pynvml.nvmlDeviceGetPowerUsage(handle) / 1000,
        }
        for name, sensor in sensors.items():
            with suppress(pynvml.NVMLError):
                values[name] = sensor(self._handle)
        return values

    def joules(self) -> float | None:
        """Returns the energy that the GPU took since this object was made, for all its processes; None if it does not count it."""
        now = self._counter()
        return None if now is None or self._millijoules is None else (now - self._millijoules) / 1000

    def _counter(self) -> int | None:
        """Returns NVML's energy counter in millijoules, which GPUs have since Volta."""
        if self._handle is None:
            return None
        with suppress(pynvml.NVMLError):
            return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        return None


def _handle() -> Any:
    """NVML's handle of the current CUDA device, which NVML numbers differently. None without CUDA."""
    import torch

    if not torch.cuda.is_available():
        return None
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


class Report:
    """Writes the records of one rank, on a `machine` of the run (from 0); rank 0 writes those of the whole run."""

    def __init__(self, run_dir: Path, rank: int, machine: int = 0) -> None:
        self.rank, self.machine = rank, machine
        self.phase = "starting"
        self.tracker: StepTracker | None = None  # set by the trainer
        self.run_dir = run_dir
        self._writer = EventWriter(events_file(run_dir, machine))
        self._sampled = 0.0
        self._sensors: GpuSensors | None = None

    def started(self, device: str) -> None:
        self._writer.write(RankStarted(rank=self.rank, pid=os.getpid(), device=device, machine=self.machine))

    def left(self) -> None:
        """Says that this rank ends in order, so that nobody takes it for dead while the others go on."""
        with suppress(OSError):  # the disk is full, which others report; its status is 0 all the same
            self._writer.write(RankLeft(rank=self.rank))

    def for_run(self, event: Event) -> None:
        """Writes a record of the whole run; only rank 0 writes it."""
        if self.rank == 0:
            self._writer.write(event)

    def note(self, message: str) -> None:
        """Tells the user something about the run; only rank 0 does."""
        self.for_run(Note(message=message))

    def warn(self, message: str) -> None:
        """The same as a warning."""
        self.for_run(Note(message=message, level="warning"))

    def for_rank(self, event: Event) -> None:
        """Writes a record of this rank."""
        self._writer.write(event)

    def enter(self, phase: str) -> None:
        """Starts a phase of the run."""
        self.phase = phase
        self.for_run(PhaseStarted(phase=phase))

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """A context for a nested phase; afterwards the previous phase continues."""
        before = self.phase
        self.enter(phase)
        yield
        self.enter(before)

    def progress(self, done: int, total: int = 0) -> None:
        """Writes the progress of the current phase; `total` is 0 if unknown."""
        self.for_run(Progress(done=done, total=total))

    def memory(self, step: int, *, always: bool = False) -> None:
        """Writes this rank's memory, and the sensors of its GPU, at a step, at most once per second unless `always`."""
        now = time.monotonic()
        if always or now - self._sampled >= _SECONDS_BETWEEN_SAMPLES:
            self._sampled = now
            self._sensors = self._sensors or GpuSensors()  # only now: the rank has its device
            values = memory_now() | self._sensors.read()
            self._writer.write(Metrics(step=step, rank=self.rank, values=values))

    def joules(self) -> float | None:
        """Returns the energy of this rank's GPU since the first step that was recorded; None if it is not counted."""
        return self._sensors.joules() if self._sensors else None

    def failed(self, error: BaseException) -> None:
        """Writes the record of an error: message and fix of a user's error, the traceback of any other."""
        if isinstance(error, UserError):
            self._fail(error, error.problem.sentence, error.fix, expected=True)
        elif full_disk.is_full(error, self.run_dir):
            full = full_disk.described(self.run_dir)
            full_disk.give_up_reserve(self.run_dir)
            with contextlib.suppress(OSError):  # if another process used the space, the supervisor reports the error
                self._fail(error, f"{full.message} ({error})", full.fix, expected=True)
        else:
            fix = _LESS_MEMORY if is_out_of_memory(error) else ""
            self._fail(error, f"{type(error).__name__}: {error}", fix, expected=False)

    def _fail(self, error: BaseException, message: str, fix: str, *, expected: bool) -> None:
        trace = "" if expected else "".join(traceback.format_exception(error))
        self._writer.write(
            Failed(
                rank=self.rank,
                error=type(error).__name__,
                message=message,
                fix=fix,
                traceback=trace,
                phase=self.phase,
                expected=expected,
            )
        )


def memory_now() -> dict[str, float | None]:
    """Returns, in bytes, the process's host memory and torch's allocated, reserved and peak memory of a GPU.

    On CPU with a memory limit, allocated and peak memory are those of live storages.
    """
    import torch

    from training.reports.live_memory import counter

    values: dict[str, float | None] = {"host_rss": psutil.Process().memory_info().rss}
    if torch.cuda.is_available():
        values["memory_allocated"] = torch.cuda.memory_allocated()
        values["memory_reserved"] = torch.cuda.memory_reserved()
        values["memory_peak"] = torch.cuda.max_memory_allocated()
    elif counting := counter():
        values |= {"memory_allocated": counting.current, "memory_peak": counting.peak}
    return values


def used_bytes() -> int:
    """Returns the device memory in use; on CPU live storages if counted, else the process's resident memory."""
    memory = memory_now()
    return int(memory.get("memory_allocated", memory["host_rss"]) or 0)


def peak_bytes() -> int:
    """Returns the peak of what `used_bytes` returns."""
    peak = memory_now().get("memory_peak")
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 if peak is None else int(peak)
