"""The results of runs, a line each: parameters, memory, speed, losses, held-out scores, size, time. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.format import numbers
from app.format.evaluation_text import label
from app.texts import _
from training.config.name_values import METRICS, MINOR_METRICS
from training.run_folder.evaluated import LOSS, REWARD, evaluated
from training.units import NONE, byte_size
from worker.store.tables import Run, Status


@dataclass(frozen=True)
class Line:
    """Values in the order of the runs, None where a run has none; `texts` are the same in words.

    `best` are the positions of the best value, empty where better has no clear direction. `notes` explain values, "" for most.
    `group` and `short` are a heading and the label below it; `minor` lines are not on pages.
    """

    key: str
    label: str
    values: list[Any]
    texts: list[str]
    notes: list[str]
    best: frozenset[int] = frozenset()
    group: str = ""
    short: str = ""
    minor: bool = False

    @property
    def known(self) -> bool:
        """True if at least one run has a value."""
        return bool(self._present)

    @property
    def has_numbers(self) -> bool:
        """True if the values are numbers, which stand to the right and have an order."""
        return all(isinstance(value, int | float) and not isinstance(value, bool) for value in self._present)

    @property
    def sortable(self) -> list[Any]:
        """Values that can be compared with each other: numbers, or else the texts in any case; None where a run has none."""
        if self.has_numbers:
            return self.values
        return [None if value is None else text.casefold() for value, text in zip(self.values, self.texts, strict=True)]

    @property
    def _present(self) -> list[Any]:
        return [value for value in self.values if value is not None]

    @property
    def differs(self) -> bool:
        """True if two runs that have a value have different ones."""
        present = [value for value, text in zip(self.values, self.texts, strict=True) if text != NONE]
        return any(value != present[0] for value in present)


def texts(values: Sequence[Any], written: Any) -> list[str]:
    """Each value as text; "-" for None."""
    return [NONE if value is None else written(value) for value in values]


def best_of(values: Sequence[Any], better: str) -> frozenset[int]:
    """The positions of the lowest or highest value; empty if fewer than two runs have one, or all have the same."""
    present = [value for value in values if value is not None]
    if better not in ("lower", "higher") or len(set(present)) < 2:
        return frozenset()
    best = min(present) if better == "lower" else max(present)
    return frozenset(place for place, value in enumerate(values) if value == best)


Devices = Mapping[str, Sequence[str]]
"""The devices of runs by id, as `node1/cuda:0`."""


@dataclass(frozen=True)
class Result:
    """How a result is read from a run, written and compared; `group` and `short` are the heading and its label on pages."""

    key: str
    label: str
    group: str
    short: str
    read: Callable[[Run], Any]
    written: Callable[[Any], str]
    better: str = ""
    minor: bool = False


def results(runs: Sequence[Run], devices: Devices) -> list[Line]:
    """The results that at least one run has."""
    alike = len({device_kind(device) for used in devices.values() for device in used}) <= 1
    lines = [_line(result, runs, alike=alike) for result in (*RESULTS, *_scores(runs), *LAST)]
    lines.append(_devices([devices[run.id] for run in runs]))
    return [line for line in lines if line.known]


def device_kind(device: str) -> str:
    """The kind in the name of a device: `node1/cuda:0` is cuda."""
    return device.rpartition("/")[2].partition(":")[0]


def _line(result: Result, runs: Sequence[Run], *, alike: bool) -> Line:
    values = [_finite(result.read(run)) for run in runs]
    better = result.better if _comparable(result, runs, alike=alike) else ""
    notes = [_note(result, run) for run in runs]
    written = [
        _("diverged") if result.key.startswith("final_") and run.diverged else text
        for run, text in zip(runs, texts(values, result.written), strict=True)
    ]
    best = best_of(values, better)
    return Line(result.key, result.label, values, written, notes, best, result.group, result.short, result.minor)


def _devices(used: Sequence[Sequence[str]]) -> Line:
    """The kinds of devices of each run: "cpu", "2 x cuda"."""
    counted = [Counter(device_kind(device) for device in devices) for devices in used]
    values = [
        ", ".join(kind if number == 1 else f"{number} x {kind}" for kind, number in counts.items()) or None
        for counts in counted
    ]
    notes = [", ".join(devices) for devices in used]
    return Line("devices", "Devices", values, texts(values, str), notes, group="Result", short="Devices")


def _comparable(result: Result, runs: Sequence[Run], *, alike: bool) -> bool:
    """False for losses and scores on different tasks or data, and for memory of different kinds of devices."""
    if result.group == "Memory":
        return alike
    return result.group not in ("Loss", "Held-out") or same_data(runs, evaluated=not result.key.startswith("final_"))


def same_data(runs: Sequence[Run], *, evaluated: bool) -> bool:
    """True if the runs have the same task and training data, or with `evaluated` evaluation data."""
    return len({(run.config.get("task"), *_digests(run, evaluated=evaluated)) for run in runs}) <= 1


def _digests(run: Run, *, evaluated: bool) -> list[str]:
    """The digests of the training data, or of the evaluation data, which without a set of its own is a part of it."""
    prefix = "validation_data" if evaluated and "validation_data" in run.fingerprints else "data"
    return [digest for key, digest in run.fingerprints.items() if key.startswith(prefix)]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _note(result: Result, run: Run) -> str:
    """What else is known of a value: the memory of each rank, a score before training."""
    summary = run.summary or {}
    if result.group == "Memory":
        sizes = (summary.get("memory") or {}).get(result.key) or []
        return (
            ", ".join(
                _("rank {rank}: {size}").format(rank=rank, size=byte_size(size)) for rank, size in enumerate(sizes)
            )
            if len(sizes) > 1
            else ""
        )
    before = (summary.get("answers") or {}).get(f"{result.key.removesuffix('_after')}_before")
    if not result.key.endswith("_after") or before is None:
        return ""
    rows = numbers.plural(summary["answers"].get("rows", 0), "row", "rows")
    return _("{score} before training, {rows}").format(score=numbers.percent(before), rows=rows)


def _summary(key: str) -> Callable[[Run], Any]:
    return lambda run: (run.summary or {}).get(key)


def _reported(key: str) -> Callable[[Run], Any]:
    """Reads the summary, or before the end the plan."""
    return lambda run: (run.summary or run.plan or {}).get(key)


def _trainable_percent(run: Run) -> Any:
    trainable, total = _reported("trainable_parameters")(run), _reported("total_parameters")(run)
    return 100 * trainable / total if total else None


def _memory(key: str) -> Callable[[Run], Any]:
    """Reads the maximum over the ranks."""

    def maximum(run: Run) -> Any:
        sizes = [size for size in ((run.summary or {}).get("memory") or {}).get(key, []) if size is not None]
        return max(sizes, default=None)

    return maximum


def _peak(run: Run) -> Any:
    return _memory("peak_bytes")(run) or run.peak_bytes


def _answers(key: str) -> Callable[[Run], Any]:
    return lambda run: ((run.summary or {}).get("answers") or {}).get(key)


def rows_per_step(run: Run) -> float:
    """The rows of a global batch."""
    config = run.settings
    batch = config.get("micro_batch_size", 1) * config.get("gradient_accumulation_steps", 1)
    processes = (run.plan or {}).get("world_size") or config.get("num_processes", 1)
    return float(batch * processes / config.get("sequence_parallel_size", 1))


def _evaluated(measure: str, loss: Callable[[Run], Any] = lambda run: run.best_loss) -> Callable[[Run], Any]:
    """The evaluation of runs that are evaluated by this measure; None of others."""

    def read(run: Run) -> Any:
        own, value = evaluated(run.config.get("task"), loss(run))
        return value if own == measure else None

    return read


def _final(run: Run) -> Any:
    return _summary("final_loss")(run) or run.final_loss


def _last_evaluated(measure: str) -> Callable[[Run], Any]:
    return _evaluated(measure, _summary("eval_loss"))


def _steps_per_second(run: Run) -> float | None:
    """Of the whole training, as tokens/s; while the run is training, of the latest steps."""
    samples = (run.summary or {}).get("samples_per_second")
    if samples is not None:
        return float(samples) / rows_per_step(run)
    return 1 / run.seconds_per_step if run.status is Status.RUNNING and run.seconds_per_step else None


def _scores(runs: Sequence[Run]) -> list[Result]:
    """The scores of held-out answers after training that at least one run has."""
    known = {key: None for run in runs for key in (run.summary or {}).get("answers") or {} if key.endswith("_after")}
    names = [key.removesuffix("_after") for key in known]
    ordered = [name for name in METRICS if name in names] + [name for name in names if name not in METRICS]
    return [
        Result(
            f"{name}_after", _("{score}, held-out").format(score=label(name)), "Held-out", label(name), _answers(f"{name}_after"),
            numbers.percent, "higher", name in MINOR_METRICS,
        )
        for name in ordered
    ]  # fmt: skip


def _percent(value: float) -> str:
    return f"{value:.4g}%"


def _rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.2f}"


RESULTS = (
    Result("trainable_parameters", "Trainable parameters", "Parameters", "Trainable", _reported("trainable_parameters"),
           numbers.count),
    Result("total_parameters", "All parameters", "Parameters", "All", _reported("total_parameters"), numbers.count, minor=True),
    Result("trainable_percent", "Trainable", "Parameters", "Share", _trainable_percent, _percent),
    Result("before_bytes", "Memory before training", "Memory", "Before", _memory("before_bytes"), byte_size),
    Result("after_bytes", "Memory after training", "Memory", "After", _memory("after_bytes"), byte_size),
    Result("peak_bytes", "Peak memory", "Memory", "Peak", _peak, byte_size, "lower"),
    Result("steps_per_second", "Steps/s", "Speed", "Steps/s", _steps_per_second, _rate),
    Result("tokens_per_second", "Tokens/s", "Speed", "Tokens/s", _summary("tokens_per_second"), _rate, "higher"),
    Result("final_loss", "Final loss", "Loss", "Final", _evaluated(LOSS, _final), numbers.decimal, "lower"),
    Result("final_reward", "Final reward", "Loss", "Final reward", _evaluated(REWARD, _final), numbers.decimal, "higher"),
    Result("best_loss", "Best evaluation loss", "Loss", "Best eval", _evaluated(LOSS), numbers.decimal, "lower"),
    Result("best_reward", "Best evaluation reward", "Loss", "Best eval reward", _evaluated(REWARD), numbers.decimal, "higher"),
    Result("eval_loss", "Last evaluation loss", "Loss", "Last eval", _last_evaluated(LOSS), numbers.decimal, "lower", minor=True),
    Result("eval_reward", "Last evaluation reward", "Loss", "Last eval reward", _last_evaluated(REWARD), numbers.decimal,
           "higher", minor=True),
    Result("eval_perplexity", "Perplexity, held-out", "Loss", "Perplexity", _summary("eval_perplexity"), numbers.decimal,
           "lower", minor=True),
)  # fmt: skip
LAST = (
    Result("adapter_bytes", "Size of adapter or model", "Result", "Size", _summary("adapter_bytes"), byte_size),
    Result("train_seconds", "Training time", "Result", "Training time", _summary("train_seconds"), numbers.duration),
)
