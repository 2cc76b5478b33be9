"""Texts about an evaluation for pages and commands, from its document. Pure."""

from collections.abc import Sequence
from typing import Any

from app.format import numbers
from app.texts import _, gettext_noop
from training.scoring.paired import Paired, in_words
from training.units import NONE

LABELS = {
    "exact_match": gettext_noop("Exact match"), "accuracy": gettext_noop("Accuracy"), "f1": gettext_noop("Token F1"),
    "rouge1": "ROUGE-1", "rouge2": "ROUGE-2",
    "rougeL": "ROUGE-L", "judge": gettext_noop("Judge"), "model": gettext_noop("Reward model"),
    "contains": gettext_noop("Contains the expected text"),
    "number_equal": gettext_noop("Last number equal"), "json_valid": gettext_noop("Valid JSON"),
    "json_fields": gettext_noop("JSON fields equal"), "regex": gettext_noop("Pattern matches"),
    "length": gettext_noop("Length"), "boxed": gettext_noop("Boxed answer equal"),
    "tool_call": gettext_noop("Tool calls equal"), "language": gettext_noop("Language"),
    "string_check": gettext_noop("Text as asked for"), "text_similarity": gettext_noop("Similar text"),
}  # fmt: skip
_SOURCES = {"result": gettext_noop("result"), "base": gettext_noop("before training")}


def label(metric: str) -> str:
    """A metric as text; an own one by its name."""
    return _(str(LABELS.get(metric, metric)))


def source(evaluation: dict[str, Any]) -> str:
    """Which weights were evaluated: "result", "before training", "checkpoint-40"."""
    name, shots = str(evaluation["source"]), evaluation.get("shots")
    words = _(_SOURCES.get(name, name))
    return _("{weights}, {count} shots").format(weights=words, count=shots) if shots else words


def data(evaluation: dict[str, Any]) -> str:
    """The name of the data set, and how many of its first rows were evaluated if not all were."""
    if evaluation["lm_eval"]:
        return "lm-eval: " + ", ".join(evaluation["lm_eval"])
    if not evaluation["asked_rows"]:
        return str(evaluation["data"])
    if evaluation.get("of_training"):
        return numbers.plural(evaluation["asked_rows"], "training row", "training rows")
    rows = numbers.plural(evaluation["asked_rows"], "row", "rows")
    return _("{data}, first {rows}").format(data=evaluation["data"], rows=rows)


def progress(evaluation: dict[str, Any]) -> str:
    """What an evaluation is doing: "answering, 32 of 160 rows"; after its end its status."""
    if evaluation["status"] != "running":
        return _(str(evaluation["status"]))
    if evaluation["stopping"]:
        return _("stopping")
    phase, done, total = _(str(evaluation["phase"])), evaluation["done"], evaluation["total"]
    if not total:
        return phase
    return _("{phase}, {done} of {total} rows").format(phase=phase, done=f"{done:,}", total=f"{total:,}")


def is_share(value: dict[str, Any]) -> bool:
    """True if a metric lies between 0 and 1, as far as its mean and interval show: such a metric is shown in percent."""
    return bool(value["low"] >= 0 and value["high"] <= 1) and not value.get("unbounded")


def mean(value: dict[str, Any], name: str = "mean") -> str:
    """The mean of a metric, or an end of its interval, in percent or as a number."""
    return numbers.percent(value[name]) if is_share(value) else f"{value[name]:,.4g}"


def score(value: dict[str, Any], rows: int) -> str:
    """The mean of a metric: "62.5% (95% interval 54.8% to 69.6%)", with the rows that have a score if some have none."""
    low, high = mean(value, "low"), mean(value, "high")
    if value["rows"] >= rows:
        return _("{mean} (95% interval {low} to {high})").format(mean=mean(value), low=low, high=high)
    sentence = _("{mean} (95% interval {low} to {high}, {count} of {rows} scored)")
    of = numbers.plural(rows, "row", "rows")
    return sentence.format(mean=mean(value), low=low, high=high, count=f"{value['rows']:,}", rows=of)


def scores(evaluation: dict[str, Any]) -> str:
    """All means in one line; without them what the evaluation is doing, or why it failed."""
    summary = evaluation["summary"] or {}
    if "lm_eval" in summary:
        return "; ".join(f"{task} {name} {value}" for task, name, value in lm_eval(summary))
    if not summary:
        return problem(evaluation["error"]) if evaluation["error"] else progress(evaluation)
    means = [f"{label(name)} {mean(value)}" for name, value in summary["metrics"].items()]
    rows = numbers.plural(summary["rows"], "row", "rows")
    return f"{', '.join(means)} ({rows})"


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


FIELDS = {
    "data": gettext_noop("Data set"), "sha256": gettext_noop("SHA-256 of the data"), "columns": gettext_noop("Columns"),
    "rows": gettext_noop("Rows"), "decoding": gettext_noop("Decoding"), "prompt": gettext_noop("Prompts"),
    "metrics": gettext_noop("Metrics and their fingerprints"), "judge": gettext_noop("Judge"), "engine": gettext_noop("Engine"),
    "dtype": gettext_noop("Data type"), "weights": gettext_noop("Weights"),
}  # fmt: skip
"""The fields of a score card (training/scoring/score_card.py) in words."""


def card(evaluation: dict[str, Any]) -> list[tuple[str, str]]:
    """The score card of an evaluation: (field, value) as text, without fields that are empty."""
    found = evaluation["card"] or {}
    return [(_(words), _card_value(found[name])) for name, words in FIELDS.items() if found.get(name)]


def _card_value(value: Any) -> str:
    if isinstance(value, dict):
        parts = {name: part for name, part in value.items() if part not in (None, "")}
        return ", ".join(f"{name} {_card_value(part)}" for name, part in parts.items())
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def differing(differs: Sequence[dict[str, Any]]) -> list[str]:
    """Why scores are not compared, a sentence for each field of the score cards that differs."""
    sentence = _("Not compared: {field} differs, {second} here and {first} there.")
    return [sentence.format(**{name: _recorded(value) for name, value in one.items()}) for one in differs]


def _recorded(value: Any) -> str:
    return _("not recorded") if value is None else _card_value(value)


def comparisons(count: int) -> str:
    """How many comparisons there are on one data set, and what that means; "" for a single one."""
    if count < 2:
        return ""
    sentence = _(
        "{count} models were compared on this data set: of 20 that do not differ, one is expected to be called better or worse."
    )
    return sentence.format(count=f"{count:,}")


def overlap(evaluation: dict[str, Any]) -> str:
    """How many evaluation rows the training rows contain, and whether they were left out."""
    found = evaluation["overlap"]
    if not found:
        return NONE
    if "problem" in found:
        return str(found["problem"])
    rows = numbers.plural(found["rows"], "row", "rows")
    trained = numbers.plural(found["training_rows"], "training row", "training rows")
    if not (found["equal"] or found["same_prompt"] or found["shared_words"]):
        sentence = _("None of {rows} is in the {trained}, entirely or by {words} consecutive words.")
        return sentence.format(rows=rows, trained=trained, words=found["words"])
    examples = ", ".join(f"{number:,}" for number in found["examples"])
    sentence = _(
        "Of {rows}, {equal} are equal to one of the {trained}, {same} have the prompt of one, and {shared} share {words} "
        "consecutive words with one (for example row {examples})."
    )
    counted = sentence.format(
        rows=rows, trained=trained, equal=f"{found['equal']:,}", same=f"{found['same_prompt']:,}",
        shared=f"{found['shared_words']:,}", words=found["words"], examples=examples,
    )  # fmt: skip
    return " ".join([counted, _("These rows are left out.")]) if evaluation["exclude_leaked_rows"] else counted


def problem(error: dict[str, Any]) -> str:
    """Why an evaluation failed, with the fix."""
    return " ".join(str(error[name]) for name in ("field", "value", "message", "fix") if error.get(name))


def engine(summary: dict[str, Any]) -> str:
    """Which program answered, where vLLM should; "" where transformers answers anyway."""
    program = summary.get("engine")
    if not program:
        return ""
    return (
        _("Answered by vLLM.")
        if program["name"] == "vllm"
        else " ".join([_("Answered by transformers."), program["reason"]])
    )


def troubles(summary: dict[str, Any]) -> list[str]:
    """What went wrong with metrics that have no score for some rows, or were noticed otherwise."""
    found = []
    for name, trouble in (summary.get("troubles") or {}).items():
        failed = numbers.plural(trouble["failed"], "row", "rows") if trouble["failed"] else ""
        sentence = _("{metric} has no score for {rows}: {reason}.") if failed else _("{metric}: {reason}.")
        found.append(sentence.format(metric=label(name), rows=failed, reason=trouble["sentence"]))
    return found


def lines(evaluation: dict[str, Any]) -> list[str]:
    """An ended evaluation as lines for a terminal."""
    head = f"Evaluation {evaluation['id']}: {evaluation['status']}, {source(evaluation)} on {data(evaluation)}"
    if evaluation["status"] != "finished":
        return [head, *([problem(evaluation["error"])] if evaluation["error"] else [])]
    summary = evaluation["summary"]
    if "lm_eval" in summary:
        return [head, *(f"  {task}  {name}: {value}" for task, name, value in lm_eval(summary))]
    rows = [f"  {label(name)}: {score(value, summary['rows'])}" for name, value in summary["metrics"].items()]
    answered = [engine(summary)] if "engine" in summary else []
    return [
        head,
        f"Rows: {summary['rows']:,}",
        *answered,
        *rows,
        *troubles(summary),
        *_against(evaluation),
        f"Overlap: {overlap(evaluation)}",
        "Score card:",
        *(f"  {name}: {value}" for name, value in card(evaluation)),
    ]


def _against(evaluation: dict[str, Any]) -> list[str]:
    """What the evaluation shows against another one, or why it is not compared, as lines."""
    if not (against := evaluation["against"]):
        return []
    shown = [f"{label(name)}: {text}" for name, text in verdicts(evaluation)] + differing(against["differs"])
    if shown and (said := comparisons(against["comparisons"])):
        shown.append(said)
    head = f"Against evaluation {against['evaluation']} ({against['source']}):"
    return [head, *(f"  {line}" for line in shown)] if shown else []


def _with_error(values: dict[str, Any], name: str) -> str:
    base, comma, rest = name.partition(",")
    error = values.get(f"{base}_stderr{comma}{rest}")
    margin = f" ± {error:.4g}" if isinstance(error, int | float) else ""
    return f"{values[name]:.4g}{margin}"
