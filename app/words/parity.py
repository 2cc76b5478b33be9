"""How a form of a result compares with what was trained, as text."""

from typing import Any

from training.run_folder.model_card import quality_loss

DIFFERS = "result differs"
"""Beside the status of a run whose result does not compute what was trained."""


def verdict(form: dict[str, Any]) -> str:
    """One of "equal", "differs", "lossy" (as intended) and "not checked"."""
    if "error" in form:
        return "not checked"
    if form.get("equal", form["answers_equal"]) and not (form.get("lossy") and not form["answers_equal"]):
        return "equal"
    return "lossy" if form.get("lossy") and form["prompt_ids_equal"] else "differs"


def figures(form: dict[str, Any]) -> str:
    """The verdict with its figures."""
    if "error" in form:
        error = form["error"]
        return f"not checked: {error['message']} {error['fix']}".strip()
    prompts = "prompt tokens equal" if form["prompt_ids_equal"] else "prompt tokens differ"
    answers = f"{form['equal_answers']} of {form['rows']} answers equal"
    lost = quality_loss(form) if form.get("lossy") else ""
    return ", ".join(filter(None, (prompts, answers, logits(form)))) + lost


def logits(form: dict[str, Any]) -> str:
    """The largest difference of the logits after a prompt; empty where the form tells none."""
    value = form.get("max_logit_difference")
    return "" if value is None else f"logits within {value:.2g}"


def difference(form: dict[str, Any]) -> str:
    """The first row that differs; empty if none does."""
    found = form.get("first_difference")
    if not found:
        return ""
    place = f"Row {found['row']}, {found['what']}, token {found['token']}"
    return f"{place}: {found['trained']!r} in training, {found['here']!r} here."
