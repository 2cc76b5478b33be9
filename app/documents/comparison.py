"""A comparison of runs: their metrics, and the settings that differ. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app.words import numbers
from app.words.numbers import plain
from training.config.fields import settings
from training.units import NONE, byte_size

Document = dict[str, Any]
_IGNORED = ("name",)  # settings without influence on training


@dataclass(frozen=True)
class Line:
    """One metric or setting of all runs, in their order: as values (None where missing) and as text."""

    key: str
    label: str
    values: list[Any]
    texts: list[str]


def measures(runs: Sequence[Document]) -> list[Line]:
    """The metrics that at least one run has."""
    lines = [_line(key, label, read, text, runs) for key, label, read, text in _MEASURES]
    return [line for line in lines if any(value is not None for value in line.values)]


def differences(runs: Sequence[Document]) -> list[Line]:
    """The settings that differ between the runs."""
    lines = []
    for name, setting in settings().items():
        # A run of an older version lacks newer settings, which act as their defaults.
        values = [run["config"].get(name, setting.default) for run in runs]
        if name not in _IGNORED and any(value != values[0] for value in values):
            lines.append(Line(name, name, values, [NONE if value is None else plain(value) for value in values]))
    return lines


def as_json(runs: Sequence[Document]) -> dict[str, Any]:
    """The comparison as a document: `runs`, then `measures` and `settings` by key, each a list in the order of the runs."""
    return {
        "runs": [{"id": run["id"], "name": run["name"], "status": run["status"]} for run in runs],
        "measures": {line.key: line.values for line in measures(runs)},
        "settings": {line.key: line.values for line in differences(runs)},
    }


def rows(runs: Sequence[Document]) -> list[list[str]]:
    """The table as text: a heading, then a row for each metric and each differing setting."""
    heading = ["", *(f"{numbers.shorten(run['name'], 32)} ({run['id']})" for run in runs)]
    status = ["Status", *(str(run["status"]) for run in runs)]
    return [heading, status, *([line.label, *line.texts] for line in [*measures(runs), *differences(runs)])]


def markdown(runs: Sequence[Document]) -> str:
    """The table in Markdown."""
    heading, *lines = [[cell.replace("|", "\\|") for cell in row] for row in rows(runs)]
    rule = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *lines))


def _line(
    key: str, label: str, read: Callable[[Document], Any], text: Callable[[Any], str], runs: Sequence[Document]
) -> Line:
    values = [read(run) for run in runs]
    return Line(key, label, values, [NONE if value is None else text(value) for value in values])


def _summary(key: str) -> Callable[[Document], Any]:
    return lambda run: (run["summary"] or {}).get(key)


def _memory(key: str) -> Callable[[Document], Any]:
    """Reads the maximum over the ranks."""

    def maximum(run: Document) -> Any:
        sizes = [size for size in ((run["summary"] or {}).get("memory") or {}).get(key, []) if size is not None]
        return max(sizes, default=None)

    return maximum


def _answers(key: str) -> Callable[[Document], Any]:
    return lambda run: ((run["summary"] or {}).get("answers") or {}).get(key)


def _steps_per_second(run: Document) -> float | None:
    summary = run["summary"] or {}
    batch = (
        run["config"]["micro_batch_size"]
        * run["config"]["gradient_accumulation_steps"]
        * run["config"]["num_processes"]
    )
    samples = summary.get("samples_per_second")
    return samples / batch if samples is not None else None


_MEASURES: tuple[tuple[str, str, Callable[[Document], Any], Callable[[Any], str]], ...] = (
    ("trainable_parameters", "Trainable parameters", _summary("trainable_parameters"), numbers.count),
    ("total_parameters", "All parameters", _summary("total_parameters"), numbers.count),
    ("trainable_percent", "Trainable", _summary("trainable_percent"), lambda value: f"{value:.4f}%"),
    ("adapter_bytes", "Size of adapter or model", _summary("adapter_bytes"), byte_size),
    ("before_bytes", "Memory before training", _memory("before_bytes"), byte_size),
    ("after_bytes", "Memory after training", _memory("after_bytes"), byte_size),
    ("peak_bytes", "Peak memory", _memory("peak_bytes"), byte_size),
    ("steps_per_second", "Steps", _steps_per_second, lambda value: f"{value:.2f} steps/s"),
    ("tokens_per_second", "Tokens", _summary("tokens_per_second"), lambda value: numbers.rate(value, "tokens")),
    ("train_seconds", "Training time", _summary("train_seconds"), numbers.duration),
    ("final_loss", "Final loss", _summary("final_loss"), numbers.decimal),
    ("eval_loss", "Evaluation loss", _summary("eval_loss"), numbers.decimal),
    ("eval_perplexity", "Perplexity, held-out", _summary("eval_perplexity"), numbers.decimal),
    ("exact_match_after", "Exact match, held-out", _answers("exact_match_after"), numbers.percent),
    ("f1_after", "Token F1, held-out", _answers("f1_after"), numbers.percent),
    ("rougeL_after", "ROUGE-L, held-out", _answers("rougeL_after"), numbers.percent),
)
