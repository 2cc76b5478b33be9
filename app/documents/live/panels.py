"""The plots of a run as a list for static/plots.js: panels, their lines and limits. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from app.texts import gettext_noop
from training.run_folder.events import LOSS_OF, REWARD_OF

GIB = 1024**3
SINGLE_RANKS = 4
"""Up to so many ranks each have a line; the lines of more ranks are summed up as median, minimum and maximum."""

Ranks = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Line:
    """A metric in a panel."""

    metric: str
    label: str
    color: str
    smooth: bool = False


@dataclass(frozen=True)
class Panel:
    """Metrics that share a value axis; `scale` from a stored value to `unit`."""

    key: str
    title: str
    lines: tuple[Line, ...]
    unit: str = ""
    scale: float = 1.0
    log: bool = False
    from_zero: bool = False


def _with_evaluation(metric: str, *others: Line) -> tuple[Line, ...]:
    """A metric of training batches, the same of evaluations, and `others`."""
    evaluation = Line(f"eval_{metric}", "evaluation", "--chart-2")
    return (Line(metric, "training", "--chart-1", smooth=True), evaluation, *others)


PANELS = (
    Panel("loss", "Loss", _with_evaluation("loss"), log=True),
    Panel("accuracy", "Accuracy", _with_evaluation("accuracy"), from_zero=True),
    Panel(
        "answers",
        "Answers to held-out rows",
        (
            Line("eval_exact_match", "exact match", "--chart-1"),
            Line("eval_f1", "token F1", "--chart-2"),
            Line("eval_rouge1", "ROUGE-1", "--chart-3"),
            Line("eval_rouge2", "ROUGE-2", "--chart-4"),
            Line("eval_rougeL", "ROUGE-L", "--chart-5"),
        ),
        from_zero=True,
    ),
    Panel("margin", "Reward margin (chosen - rejected)", _with_evaluation("margin")),
    Panel("reward", "Reward", _with_evaluation("reward", Line("reward_std", "spread", "--chart-3", smooth=True))),
    Panel(
        "samples",
        "Shares of prompts and samples",
        (
            Line("all_equal_groups", "prompts with equal rewards", "--chart-1", smooth=True),
            Line("cut_off", "samples cut off", "--chart-2", smooth=True),
            Line("unscored", "samples without a reward", "--chart-4", smooth=True),
        ),
        from_zero=True,
    ),
    Panel(
        "teacher",
        "Log-probability of a token",
        (
            Line("teacher_logprob", "teacher, of samples", "--chart-1", smooth=True),
            Line("eval_teacher_logprob", "of held-out samples", "--chart-2"),
        ),
    ),
    Panel(
        "completion_length",
        "Length of samples",
        (Line("completion_length", "mean", "--chart-1", smooth=True),),
        "tokens",
        from_zero=True,
    ),
    Panel(
        "policy",
        "Policy",
        (
            Line("entropy", "entropy", "--chart-1", smooth=True),
            Line("kl", "KL divergence", "--chart-2", smooth=True),
            Line("clipped", "clipped tokens", "--chart-3", smooth=True),
        ),
    ),
    Panel(
        "sampler",
        "vLLM and the model",
        (
            Line("sampler_difference", "difference of log-probabilities", "--chart-1"),
            Line("sampler_ratio", "ratio of probabilities", "--chart-2", smooth=True),
        ),
        from_zero=True,
    ),
    Panel(
        "sampling",
        "Time of a step",
        (
            Line("generate_seconds", "drawing samples", "--chart-1"),
            Line("score_seconds", "scoring", "--chart-2"),
            Line("teacher_seconds", "teacher", "--chart-3"),
        ),
        "s",
        from_zero=True,
    ),
    Panel("learning_rate", "Learning rate", (Line("learning_rate", "learning rate", "--chart-3"),), log=True),
    Panel("grad_norm", "Gradient norm", (Line("grad_norm", "gradient norm", "--chart-4", smooth=True),), log=True),
    Panel("speed", "Speed", (Line("tokens_per_second", "speed", "--chart-5", smooth=True),), unit="tokens/s"),
    Panel(
        "memory",
        "Memory",
        (
            Line("memory_allocated", "allocated", "--chart-1"),
            Line("memory_reserved", "reserved", "--chart-3"),
            Line("memory_peak", "peak", "--chart-2"),
        ),
        unit="GiB",
        scale=1 / GIB,
        from_zero=True,
    ),
    Panel("host_memory", "Host memory", (Line("host_rss", "host", "--chart-5"),), "GiB", 1 / GIB, from_zero=True),
    Panel("gpu_utilization", "GPU utilization", (Line("gpu_utilization", "GPU", "--chart-1"),), "%", from_zero=True),
    Panel("gpu_temperature", "GPU temperature", (Line("gpu_temperature", "GPU", "--chart-2"),), "°C"),
    Panel("gpu_power", "GPU power", (Line("gpu_power", "GPU", "--chart-4"),), "W", from_zero=True),
)

_SET_PANELS = (
    (LOSS_OF, gettext_noop("Training loss of each data set")),
    (f"eval_{LOSS_OF}", gettext_noop("Evaluation loss of each data set")),
    (REWARD_OF, gettext_noop("Each reward")),
)
_COLORS = tuple(f"--chart-{number}" for number in range(1, 6))
_METRICS = frozenset(line.metric for panel in PANELS for line in panel.lines)


def is_of_set(name: str) -> bool:
    """True for the loss of one of several data sets, and for one of the rewards."""
    return name.startswith(tuple(prefix for prefix, _ in _SET_PANELS))


def is_drawn(name: str) -> bool:
    """True for metrics that have a plot."""
    return name in _METRICS or is_of_set(name)


def panels(ranks: Ranks, limits: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
    """The panels that have points, rewards first. `ranks`: those of each stored metric. `limits`: lines of the memory plot."""
    loss, *others = PANELS
    if "reward" in ranks:  # the loss of samples is about 0, and the evaluation's is minus the reward
        loss = replace(loss, lines=loss.lines[:1], log=False)
    shown = [loss, *_set_panels(ranks), *others]
    documents = []
    for panel in sorted(shown, key=lambda panel: panel.key != "reward"):
        lines = [document for line in panel.lines for document in _lines(line, ranks.get(line.metric, ()))]
        if lines:
            known = {"limits": list(limits)} if panel.key == "memory" else {}
            documents.append(_document(panel) | known | {"lines": lines})
    return documents


def is_summed_up(ranks: Sequence[int]) -> bool:
    """True if the ranks of a metric have one line together."""
    return len(ranks) > SINGLE_RANKS


def line_key(name: str, rank: int) -> str:
    """The key of a metric of one rank, of the whole run where `rank` is negative."""
    return name if rank < 0 else f"{name}/{rank}"


def _document(panel: Panel) -> dict[str, Any]:
    return {
        "key": panel.key,
        "title": panel.title,
        "unit": panel.unit,
        "scale": panel.scale,
        "log": panel.log,
        "fromZero": panel.from_zero,
    }


def _lines(line: Line, ranks: Sequence[int]) -> list[dict[str, Any]]:
    shared = {"label": line.label, "color": line.color, "smooth": line.smooth}
    if is_summed_up(ranks):
        return [{"key": line.metric, "ranks": max(ranks) + 1, **shared}]
    group = {"group": line.metric} if len(ranks) > 1 else {}
    return [
        {"key": line_key(line.metric, rank), **shared, **group, **({"rank": rank} if rank >= 0 else {})}
        for rank in sorted(ranks)
    ]


def _set_panels(ranks: Ranks) -> list[Panel]:
    """The losses of several data sets, and each of several rewards; a set has the same color in both panels."""
    panels = []
    for prefix, title in _SET_PANELS:
        kind = prefix.removeprefix("eval_")
        names = sorted({name.partition("/")[2] for name in ranks if name.removeprefix("eval_").startswith(kind)})
        lines = (
            Line(f"{prefix}{name}", name, _COLORS[number % len(_COLORS)], smooth=prefix == kind)
            for number, name in enumerate(names)
        )
        key = prefix.strip("/").replace("/", "_") + "_of_sets"
        panels.append(Panel(key, title, tuple(lines), log=kind == LOSS_OF))
    return panels
