"""Rules on streaming."""

from collections.abc import Iterator

from training.config.choices import Interval, Task
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def streaming_needs_supervised_fine_tuning(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.streaming and config.task is not Task.SFT:
        yield Conflict(
            ("streaming", "task"),
            f"Task {config.task.value} needs a tokenized data set, and streaming makes none.",
            "Set streaming to false.",
            {"streaming": False},
        )


@rule
def streaming_does_not_support_sampling(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name, fact in (
        ("stratify_by", "Streaming holds out the first rows"),
        ("max_samples", "Streaming does not know all rows in advance"),
    ):
        if config.streaming and getattr(config, name) is not None:
            yield Conflict(
                (name, "streaming"),
                f"{fact}, and {name} samples from all rows.",
                f"Clear {name}"
                + (" and set data_slice or max_steps" if name == "max_samples" else "")
                + ", or set streaming to false.",
                {name: None},
            )


@rule
def streaming_reads_one_data_set(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    first, *others = config.sources
    if config.streaming and (others or first.max_rows):
        what = "several data sets" if others else "max_rows"
        yield Conflict(
            ("data", "streaming"),
            f"Streaming reads one data set from its first row on and does not support {what}.",
            "Set streaming to false, or give one data set without max_rows.",
            {"streaming": False},
        )


@rule
def a_stream_has_no_epochs(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    for name in ("eval_strategy", "save_strategy"):
        if config.streaming and getattr(config, name) is Interval.EPOCH:
            yield Conflict(
                (name, "streaming"),
                "Streaming reads rows without a break between epochs.",
                f"Set {name} to steps.",
                {name: "steps"},
            )
