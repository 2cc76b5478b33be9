"""Texts about an evaluation for pages and commands, from its document. Pure."""

from typing import Any

from app.format import numbers
from training.scoring.paired import Paired, in_words
from training.units import NONE

LABELS = {
    "exact_match": "Exact match", "accuracy": "Accuracy", "f1": "Token F1", "rouge1": "ROUGE-1", "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L", "judge": "Judge",
}  # fmt: skip
_SOURCES = {"result": "result", "base": "before training"}


def label(metric: str) -> str:
    """A metric as text; an own one by its name."""
    return str(LABELS.get(metric, metric))


def source(evaluation: dict[str, Any]) -> str:
    """Which weights were evaluated: "result", "before training", "checkpoint-40"."""
    name = str(evaluation["source"])
    return _SOURCES.get(name, name)


def data(evaluation: dict[str, Any]) -> str:
    """The name of the data set, and how many of its first rows were evaluated if not all were."""
    if evaluation["lm_eval"]:
        return "lm-eval: " + ", ".join(evaluation["lm_eval"])
    first = f", first {numbers.plural(evaluation['asked_rows'], 'row', 'rows')}" if evaluation["asked_rows"] else ""
    return f"{evaluation['data']}{first}"


def progress(evaluation: dict[str, Any]) -> str:
    """What an evaluation is doing: "answering, 32 of 160 rows"; after its end its status."""
    if evaluation["status"] != "running":
        return str(evaluation["status"])
    if evaluation["stopping"]:
        return "stopping"
    return (
        f"{evaluation['phase']}, {evaluation['done']:,} of {evaluation['total']:,} rows"
        if evaluation["total"]
        else evaluation["phase"]
    )


def is_share(value: dict[str, Any]) -> bool:
    """True if a metric lies between 0 and 1, as far as its mean and interval show: such a metric is shown in percent."""
    return bool(value["low"] >= 0 and value["high"] <= 1)


def mean(value: dict[str, Any], name: str = "mean") -> str:
    """The mean of a metric, or an end of its interval, in percent or as a number."""
    return numbers.percent(value[name]) if is_share(value) else f"{value[name]:,.4g}"


def score(value: dict[str, Any], rows: int) -> str:
    """The mean of a metric: "62.5% (95% interval 54.8% to 69.6%)", with the rows that have a score if some have none."""
    low, high = mean(value, "low"), mean(value, "high")
    counted = f", {value['rows']:,} of {numbers.plural(rows, 'row', 'rows')} scored" if value["rows"] < rows else ""
    return f"{mean(value)} (95% interval {low} to {high}{counted})"


def scores(evaluation: dict[str, Any]) -> str:
    """All means in one line; without them what the evaluation is doing, or why it failed."""
    summary = evaluation["summary"] or {}
    if "lm_eval" in summary:
        return "; ".join(f"{task} {name} {value}" for task, name, value in lm_eval(summary))
    if not summary:
        return problem(evaluation["error"]) if evaluation["error"] else progress(evaluation)
    means = [f"{label(name)} {mean(value)}" for name, value in summary["metrics"].items()]
    return f"{', '.join(means)} ({numbers.plural(summary['rows'], 'row', 'rows')})"


def lm_eval(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(task, metric, value with its standard error) of the results of lm-eval."""
    return [
        (task, name.removesuffix(",none"), _with_error(values, name))
        for task, values in summary["lm_eval"].items()
        for name, value in values.items()
        if isinstance(value, int | float) and "_stderr" not in name and name != "sample_len"
    ]


def verdicts(evaluation: dict[str, Any]) -> list[tuple[str, str]]:
    """(metric, what it shows against the other evaluation) of an evaluation that is compared with another one."""
    if not evaluation["against"]:
        return []
    metrics = evaluation["summary"]["metrics"]
    return [
        (name, in_words(Paired.read(one), share=is_share(metrics[name])))
        for name, one in evaluation["against"]["scores"].items()
        if name in metrics
    ]


def overlap(found: dict[str, Any] | None) -> str:
    """How many evaluation rows the training rows contain."""
    if not found:
        return NONE
    if "problem" in found:
        return str(found["problem"])
    rows, trained = (
        numbers.plural(found["rows"], "row", "rows"),
        numbers.plural(found["training_rows"], "training row", "training rows"),
    )
    if not (found["equal"] or found["same_prompt"] or found["shared_words"]):
        return f"None of {rows} is in the {trained}, entirely or by {found['words']} consecutive words."
    examples = ", ".join(f"{number:,}" for number in found["examples"])
    return (
        f"Of {rows}, {found['equal']:,} are equal to one of the {trained}, {found['same_prompt']:,} have the prompt of one, and "
        f"{found['shared_words']:,} share {found['words']} consecutive words with one (for example row {examples})."
    )


def problem(error: dict[str, Any]) -> str:
    """Why an evaluation failed, with the fix."""
    return " ".join(str(error[name]) for name in ("field", "value", "message", "fix") if error.get(name))


def engine(summary: dict[str, Any]) -> str:
    """Which program answered, where vLLM should; "" where transformers answers anyway."""
    program = summary.get("engine")
    if not program:
        return ""
    return "Answered by vLLM." if program["name"] == "vllm" else f"Answered by transformers. {program['reason']}"


def lines(evaluation: dict[str, Any]) -> list[str]:
    """An ended evaluation as lines for a terminal."""
    head = f"Evaluation {evaluation['id']}: {evaluation['status']}, {source(evaluation)} on {data(evaluation)}"
    if evaluation["status"] != "finished":
        return [head, *([problem(evaluation["error"])] if evaluation["error"] else [])]
    summary = evaluation["summary"]
    if "lm_eval" in summary:
        return [head, *(f"  {task}  {name}: {value}" for task, name, value in lm_eval(summary))]
    rows = [f"  {label(name)}: {score(value, summary['rows'])}" for name, value in summary["metrics"].items()]
    shown = [f"  {label(name)}: {text}" for name, text in verdicts(evaluation)]
    against = (
        [f"Against evaluation {evaluation['against']['evaluation']} ({evaluation['against']['source']}):"]
        if shown
        else []
    )
    answered = [engine(summary)] if "engine" in summary else []
    return [
        head,
        f"Rows: {summary['rows']:,}",
        *answered,
        *rows,
        *against,
        *shown,
        f"Overlap: {overlap(evaluation['overlap'])}",
    ]


def _with_error(values: dict[str, Any], name: str) -> str:
    base, comma, rest = name.partition(",")
    error = values.get(f"{base}_stderr{comma}{rest}")
    margin = f" ± {error:.4g}" if isinstance(error, int | float) else ""
    return f"{values[name]:.4g}{margin}"
