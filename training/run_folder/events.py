"""The records of a training program: one JSON line each, appended to the run's events.jsonl.

All ranks of a machine append to the same file, each line with one `write`, which the kernel does not interleave. On a shared folder
(NFS) appends of two machines may overwrite each other, so each machine has a file of its own. Lines never change, so a reader
can continue from its byte offset.
"""

import dataclasses
import json
import math
import os
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, dataclass_transform

from training.redaction import redact

FINISHED = "finished"
"""The outcome of a run that has trained to its end."""
PAUSED = "paused"
"""The outcome of a run that has reached the step at which its sweep decides."""
REVIEW = "review"
"""The outcome of a run that stops before its first step, so that a person reads its samples."""
DIVERGED = "diverged"
"""The outcome of a run whose loss or gradient was no longer finite."""
GENERATION = "generation"
"""The part of a step, or of an evaluation, in which the model writes samples or answers."""
LOSS_OF = "loss/"
"""Begins the names of the losses of each of several data sets: loss/alpaca.jsonl, eval_loss/alpaca.jsonl."""
REWARD_OF = "reward/"
"""Begins the names of the rewards of a run: reward/exact_match."""
_BEGIN = b'{"kind":'
_WORDS = {"message", "fix", "traceback"}


KINDS: dict[str, type["Event"]] = {}


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Event:
    """Base class of all records, which are frozen dataclasses. `time` is in seconds since the epoch, by the trainer's clock."""

    kind: ClassVar[str]
    time: float = field(default_factory=time.time)

    def __init_subclass__(cls, kind: str) -> None:
        cls.kind = kind
        KINDS[kind] = dataclass(frozen=True, kw_only=True)(cls)


class RankStarted(Event, kind="rank_started"):
    """A rank's process has started on a machine of the run, counted from 0."""

    rank: int
    pid: int
    device: str
    machine: int = 0


class RankLeft(Event, kind="rank_left"):
    """A rank has done its part and ends with status 0. The others may go on without it."""

    rank: int


class PhaseStarted(Event, kind="phase"):
    """The run entered a phase: starting, compiling DeepSpeed operators, loading data, loading model, preparing, probing, training,
    evaluating, saving, and the stages after the training (training/run_folder/stages.py)."""

    phase: str


class Planned(Event, kind="planned"):
    """The length of the run and its real setup, known once data and model are ready.

    `sets` are several training data sets: name, rows, and the rows and tokens of each in the first epoch; `eval_sets` those of the
    held-out rows: name and rows. `engine` is the class that wraps the model: DeepSpeedEngine, DistributedDataParallel, or the
    model's own.
    """

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
    sets: list[dict[str, Any]] = field(default_factory=list)
    eval_sets: list[dict[str, Any]] = field(default_factory=list)


class Placed(Event, kind="placed"):
    """A rank's share: `parameter_shard` of `parameters` elements, optimizer state for `optimizer_shard` of `optimized`."""

    rank: int
    parameter_shard: int
    parameters: int
    optimizer_shard: int
    optimized: int


class Metrics(Event, kind="metrics"):
    """Metrics at a step by name: loss, learning_rate, grad_norm, tokens_per_second, samples_per_second, eval_loss, ...

    `tokens` are those of the run so far (without padding, of all ranks), `epoch` the epochs so far.

    `rank` is set for metrics of one rank: memory_allocated, memory_reserved, memory_peak, host_rss (bytes), and where NVML
    answers gpu_utilization (percent), gpu_temperature (°C) and gpu_power (watts).
    """

    step: int
    values: dict[str, float | None]
    rank: int | None = None


class SampleDrawn(Event, kind="sample"):
    """A sample that a step draws and trains on; step 0 is before training.

    `sample` is its number in the epoch, `group` that of its prompt there, `row` that of the data row in `file` (its name if there
    are several); all from 0. `text` is the sample without special tokens, `tokens` its length, `ended` false if it was cut off at
    the greatest length. `scores` are those of each reward, `reward` their weighted sum; None where none applies. Those of task
    distill are the mean log-probability that the teacher gives to a token, and have no `advantage`.
    """

    step: int
    sample: int
    group: int
    row: int
    file: str
    prompt: str
    expected: str
    text: str
    tokens: int
    ended: bool
    scores: dict[str, float | None]
    reward: float | None
    advantage: float | None


class Progress(Event, kind="progress"):
    """The progress of a phase that has no steps: rows tokenized, answered, ..."""

    done: int
    total: int


class CheckpointSaved(Event, kind="checkpoint"):
    """A checkpoint is complete: its manifest is on disk. `path` is relative to the run's folder.

    `stall_seconds` is how long it stopped training, `write_seconds` how long it was then written in the background.
    """

    step: int
    path: str
    bytes: int
    stall_seconds: float | None = None
    write_seconds: float = 0.0


class Resumed(Event, kind="resumed"):
    """Training resumed from a checkpoint; `rejected` has newer incomplete ones, each with the reason."""

    step: int
    path: str
    rejected: list[str]


class ResultSaved(Event, kind="result"):
    """The result of the training is saved whole. What follows can be repeated without training."""

    step: int


class Note(Event, kind="note"):
    """A message for the user; `level` is info or warning."""

    message: str
    level: str = "info"


class NodeFault(Event, kind="node_fault"):
    """The attempt cannot go on because of a node: its number in the run, its name, and what is wrong with it."""

    machine: int
    node: str
    message: str


class Failed(Event, kind="failed"):
    """A rank ended with an error. `expected` errors have a fix for the user; others have a traceback."""

    rank: int
    error: str
    message: str
    fix: str = ""
    traceback: str = ""
    phase: str = ""
    expected: bool = False


class OutOfMemory(Event, kind="out_of_memory"):
    """An out-of-memory error of a rank: its position in the run, the rows, and the contents of its memory.

    `part` of a step is generation, forward, backward, optimizer or evaluation; empty outside of steps. Steps, micro steps (in an
    evaluation: batches) and rows of the file count from 1. `tensors` are those of the rank's batch (name, shape, dtype, bytes).
    `batches` are the rows of every rank in that micro step (rank, rows, tokens of each, and of several data sets that of each
    row); empty if unknown. `memory` has the allocator's bytes (allocated, peak, limit; on CUDA also reserved), `kinds` the bytes
    by kind, `largest` the largest groups of equal tensors (kind, shape, dtype, count, bytes of all). `policy` is the run's
    `on_out_of_memory`. Only old records have `step_down`, the changes for the next attempt; now the supervisor chooses them.
    """

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


class Finished(Event, kind="finished"):
    """The program has ended. `outcome` is finished, stopped on request, paused at the step of PAUSE_VARIABLE, stopped for a
    review, or diverged.

    A diverged run's `summary` is that of its best checkpoint, with `diverged_at`, the step at which it ended; without one it has
    only `diverged_at`, and to resume with other settings `changes`.
    """

    outcome: str
    step: int
    summary: dict[str, Any]


def encode(event: Event) -> bytes:
    """One line of JSON, with sentences and tracebacks redacted. NaN and infinities become null, since JSON has neither."""
    values = {"kind": event.kind} | dataclasses.asdict(event)
    values |= {name: redact(values[name]) for name in _WORDS & values.keys()}
    try:
        return json.dumps(values, allow_nan=False, separators=(",", ":")).encode() + b"\n"
    except ValueError:
        return json.dumps(finite(values), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Event | None:
    """The record in a line, or None if there is none (an unknown kind, a truncated line).

    Also finds a record after a truncated one on the same line, which a full disk leaves.
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
    """Appends records to a file. Safe with several writers; `write` returns after the system call."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: Event) -> None:
        """Appends one line. Raises OSError if the disk is full, or the file is gone."""
        record = line = encode(event)
        while os.write(self._descriptor, line) < len(line):
            # The disk is or was full, and the written part is not a complete record.
            line = b"\n" + record


def finite(value: Any) -> Any:
    """`value` with None in place of every NaN and infinity."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
