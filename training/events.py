"""What a training program reports: typed records, one JSON line each, appended to the run's events.jsonl.

Every rank appends to the same file: one `write` of one line to a file opened for appending, which the kernel does not
interleave. Lines are never rewritten, so a reader can remember its byte offset and go on from there.
"""

import dataclasses
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self


@dataclass(frozen=True, kw_only=True)
class Event:
    """The base of all records. `time` is seconds since the epoch, by the trainer's clock."""

    kind: ClassVar[str]
    time: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class RankStarted(Event):
    """A rank's process has begun: which process it is, so that it can be signalled."""

    kind: ClassVar[str] = "rank_started"
    rank: int
    pid: int
    device: str


@dataclass(frozen=True, kw_only=True)
class PhaseStarted(Event):
    """The run entered a phase: starting, compiling DeepSpeed operators, loading data, loading model, preparing, probing, training,
    evaluating, saving, answering, merging, pushing."""

    kind: ClassVar[str] = "phase"
    phase: str


@dataclass(frozen=True, kw_only=True)
class Planned(Event):
    """Known once data and model are ready: how long the run is and how it really runs.

    `engine` is the class that wraps the model: DeepSpeedEngine, DistributedDataParallel, or the model's own.
    """

    kind: ClassVar[str] = "planned"
    total_steps: int
    start_step: int
    train_rows: int
    eval_rows: int
    skipped_rows: int
    truncated_rows: int
    engine: str
    zero_stage: int | None
    world_size: int
    precision: str
    trainable_parameters: int
    total_parameters: int
    target_modules: list[str]
    packing: str = "none"
    attention: str = ""


@dataclass(frozen=True, kw_only=True)
class Placed(Event):
    """What one rank holds: `parameter_shard` of `parameters` elements, optimizer state for `optimizer_shard` of `optimized`."""

    kind: ClassVar[str] = "placed"
    rank: int
    parameter_shard: int
    parameters: int
    optimizer_shard: int
    optimized: int


@dataclass(frozen=True, kw_only=True)
class Metrics(Event):
    """Numbers at a step, by name: loss, learning_rate, grad_norm, tokens_per_second, samples_per_second, eval_loss, ...

    `rank` is set for what each rank measures for itself: memory_allocated, memory_reserved, memory_peak, host_rss (bytes).
    """

    kind: ClassVar[str] = "metrics"
    step: int
    values: dict[str, float | None]
    rank: int | None = None


@dataclass(frozen=True, kw_only=True)
class Progress(Event):
    """How far a phase has come, where it is not counted in steps: rows tokenised, answered, ..."""

    kind: ClassVar[str] = "progress"
    done: int
    total: int


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is whole: its manifest is on disk. `path` is relative to the run's folder."""

    kind: ClassVar[str] = "checkpoint"
    step: int
    path: str
    bytes: int


@dataclass(frozen=True, kw_only=True)
class Resumed(Event):
    """Training goes on from a checkpoint; `rejected` names newer ones that were not whole, each with the reason."""

    kind: ClassVar[str] = "resumed"
    step: int
    path: str
    rejected: list[str]


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """Something a person should know; `level` is info or warning."""

    kind: ClassVar[str] = "note"
    message: str
    level: str = "info"


@dataclass(frozen=True, kw_only=True)
class Failed(Event):
    """A rank ended with an error. `expected` errors are a person's to mend and carry their own fix; others carry a traceback."""

    kind: ClassVar[str] = "failed"
    rank: int
    error: str
    message: str
    fix: str = ""
    traceback: str = ""
    phase: str = ""
    expected: bool = False


@dataclass(frozen=True, kw_only=True)
class OutOfMemory(Event):
    """Device memory ran out on a rank: what it did, with which rows, and what filled its memory.

    `part` of a step: forward, backward, optimizer or evaluation; empty outside of steps. Steps and micro steps count from 1
    (in an evaluation the micro step is its batch), and so do the rows of the file. `tensors` are those of the rank's batch
    (name, shape, dtype, bytes); `batches` the rows of every rank at that moment (rank, rows, tokens of each), empty where
    they are not known; `memory` what the allocator says in bytes (allocated, peak, limit; on CUDA reserved too); `kinds` the
    bytes by what they are for; `largest` the largest groups of alike allocations (kind, shape, dtype, count, bytes of all).
    `step_down` are the settings of the next rung, None where none is left, and `policy` what is done with it.
    """

    kind: ClassVar[str] = "out_of_memory"
    rank: int
    device: str
    phase: str
    policy: str
    part: str = ""
    step: int | None = None
    micro_step: int | None = None
    requested_bytes: int | None = None
    tensors: list[dict[str, Any]] = field(default_factory=list)
    batches: list[dict[str, Any]] = field(default_factory=list)
    memory: dict[str, int] = field(default_factory=dict)
    kinds: dict[str, int] = field(default_factory=dict)
    largest: list[dict[str, Any]] = field(default_factory=list)
    step_down: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class Finished(Event):
    """The program came to its end. `outcome` is finished, or stopped where it was asked to leave early."""

    kind: ClassVar[str] = "finished"
    outcome: str
    step: int
    summary: dict[str, Any]


KINDS: dict[str, type[Event]] = {
    cls.kind: cls
    for cls in (
        RankStarted,
        PhaseStarted,
        Planned,
        Placed,
        Metrics,
        Progress,
        CheckpointSaved,
        Resumed,
        Note,
        Failed,
        OutOfMemory,
        Finished,
    )
}


_BEGIN = b'{"kind":'


def encode(event: Event) -> bytes:
    """One line of JSON. NaN and infinities become null: JSON has neither, and databases differ on them."""
    values = {"kind": event.kind} | dataclasses.asdict(event)
    try:
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except ValueError:
        return json.dumps(finite(values), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Event | None:
    """The record in a line, or None where it is not one (a later version's kind, a line cut off by a crash).

    Behind a record that a full disk cut off, the next one is found.
    """
    return _decode(line) or _decode(line[max(0, line.rfind(_BEGIN)) :])


def _decode(line: bytes) -> Event | None:
    try:
        values = json.loads(line)
        cls = KINDS[values.pop("kind")]
        return cls(**values)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class EventWriter:
    """Appends records to a file. Safe with several writers, and a line is on its way to disk when `write` returns."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def write(self, event: Event) -> None:
        """Appends one line.

        Raises:
            OSError: the disk is full, or the file is gone.
        """
        record = line = encode(event)
        while os.write(self._descriptor, line) < len(line):
            # The disk is full, or was: what there was room for is no record.
            line = b"\n" + record

    def close(self) -> None:
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def finite(value: Any) -> Any:
    """`value` with null in place of each NaN and infinity in it."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
