"""The scores of the setting `eval_metrics`. No torch."""

from typing import Any

METRICS = ("exact_match", "f1", "rouge1", "rouge2", "rougeL")
"""Scores of an answer against the expected one, from 0 to 1."""


def canonical(value: Any) -> Any:
    """The value of the setting for what a file, a flag or a form gives: names separated by commas.

    Raises:
        ValueError: a name is not that of a score, or there is none.
    """
    if not isinstance(value, (str, list, tuple)):
        return value
    given = value.split(",") if isinstance(value, str) else [str(name) for name in value]
    names = [name.strip() for name in given if name.strip()]
    if not names or (unknown := [name for name in names if name not in METRICS]):
        wrong = f"has {unknown[0][:60]!r}, which is not one of" if names else "needs at least one of"
        raise ValueError(f"{wrong} {', '.join(METRICS)}")
    return ", ".join(dict.fromkeys(names))


def listed(text: str) -> tuple[str, ...]:
    """The scores that the setting names."""
    return tuple(name.strip() for name in text.split(",") if name.strip())
