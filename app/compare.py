"""Runs side by side: what each cost and came to, and the settings in which they differ. Pure."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from app import text
from app.cli_settings import plain
from training.fields import settings

Document = dict[str, Any]
_UNTOLD = ("name",)  # settings that are no cause of anything


@dataclass(frozen=True)
class Line:
    """One measure of every run, in the order of the runs: as numbers (None where there is none) and as people read them."""

    key: str
    label: str
    values: list[Any]
    words: list[str]


def measures(runs: Sequence[Document]) -> list[Line]:
    """What was measured of each run; a measure that none has is left out."""
    lines = [_line(key, label, read, word, runs) for key, label, read, word in _MEASURES]
    return [line for line in lines if any(value is not None for value in line.values)]


def differences(runs: Sequence[Document]) -> list[Line]:
    """The settings that are not the same in all runs."""
    lines = []
    for name, setting in settings().items():
        # A run of an earlier version knew fewer settings: those were what is now their default.
        values = [run["config"].get(name, setting.default) for run in runs]
        if name not in _UNTOLD and any(value != values[0] for value in values):
            lines.append(Line(name, name, values, [text.NONE if value is None else plain(value) for value in values]))
    return lines


def as_json(runs: Sequence[Document]) -> dict[str, Any]:
    """The comparison as a document: `runs`, then `measures` and `settings` by key, each a list in the order of the runs."""
    return {
        "runs": [{"id": run["id"], "name": run["name"], "status": run["status"]} for run in runs],
        "measures": {line.key: line.values for line in measures(runs)},
        "settings": {line.key: line.values for line in differences(runs)},
    }


def rows(runs: Sequence[Document]) -> list[list[str]]:
    """The table for people: a heading, then a line each measure and each differing setting."""
    heading = ["", *(f"{text.shorten(run['name'], 32)} ({run['id']})" for run in runs)]
    told = [["Status", *(str(run["status"]) for run in runs)]]
    told += [[line.label, *line.words] for line in measures(runs)]
    differing = [[line.label, *line.words] for line in differences(runs)]
    return [heading, *told, *differing]


def markdown(runs: Sequence[Document]) -> str:
    """The same as a Markdown table."""
    heading, *lines = [[cell.replace("|", "\\|") for cell in row] for row in rows(runs)]
    rule = ["---"] + ["---:"] * (len(heading) - 1)
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, rule, *lines))


def _line(key: str, label: str, read: Callable[[Document], Any], word: Callable[[Any], str], runs: Sequence[Document]) -> Line:
    values = [read(run) for run in runs]
    return Line(key, label, values, [text.NONE if value is None else word(value) for value in values])


def _summary(key: str) -> Callable[[Document], Any]:
    return lambda run: (run["summary"] or {}).get(key)


def _memory(key: str) -> Callable[[Document], Any]:
    """Of the rank that has most."""

    def most(run: Document) -> Any:
        sizes = [size for size in ((run["summary"] or {}).get("memory") or {}).get(key, []) if size is not None]
        return max(sizes, default=None)

    return most


def _answers(key: str) -> Callable[[Document], Any]:
    return lambda run: ((run["summary"] or {}).get("answers") or {}).get(key)


def _steps_per_second(run: Document) -> float | None:
    summary = run["summary"] or {}
    batch = run["config"]["micro_batch_size"] * run["config"]["gradient_accumulation_steps"] * run["config"]["num_processes"]
    samples = summary.get("samples_per_second")
    return samples / batch if samples is not None else None


_MEASURES: tuple[tuple[str, str, Callable[[Document], Any], Callable[[Any], str]], ...] = (
    ("trainable_parameters", "Trainable parameters", _summary("trainable_parameters"), text.count),
    ("total_parameters", "All parameters", _summary("total_parameters"), text.count),
    ("trainable_percent", "Trainable", _summary("trainable_percent"), lambda value: f"{value:.4f}%"),
    ("adapter_bytes", "Size of the result", _summary("adapter_bytes"), text.byte_size),
    ("before_bytes", "Memory before training", _memory("before_bytes"), text.byte_size),
    ("after_bytes", "Memory after training", _memory("after_bytes"), text.byte_size),
    ("peak_bytes", "Peak memory", _memory("peak_bytes"), text.byte_size),
    ("steps_per_second", "Steps", _steps_per_second, lambda value: f"{value:.2f} steps/s"),
    ("tokens_per_second", "Tokens", _summary("tokens_per_second"), lambda value: text.rate(value, "tokens")),
    ("train_seconds", "Training time", _summary("train_seconds"), text.duration),
    ("final_loss", "Final loss", _summary("final_loss"), text.decimal),
    ("eval_loss", "Evaluation loss", _summary("eval_loss"), text.decimal),
    ("eval_perplexity", "Perplexity, held out", _summary("eval_perplexity"), text.decimal),
    ("exact_match_after", "Exact match, held out", _answers("exact_match_after"), text.percent),
    ("f1_after", "Token F1, held out", _answers("f1_after"), text.percent),
    ("rougeL_after", "ROUGE-L, held out", _answers("rougeL_after"), text.percent),
)
