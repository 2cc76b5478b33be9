"""Texts about a suite for pages, from its document. Pure."""

from typing import Any

from app.texts import _, gettext_noop
from training.scoring.request import BASELINE

_CHECKS = {
    "gain": gettext_noop("Gain"), "few_shot": gettext_noop("Against few-shot"), "overfitting": gettext_noop("Overfitting"),
    "leak": gettext_noop("Leak"),
    "template": gettext_noop("Chat template"), "forgetting": gettext_noop("Forgetting"), "text": gettext_noop("Plain text"),
}  # fmt: skip
_WORDS = (
    gettext_noop("passed"), gettext_noop("failed"), gettext_noop("skipped"), gettext_noop("kept"), gettext_noop("fixed"),
    gettext_noop("broken"), gettext_noop("failing"),
)  # fmt: skip


def check(name: str) -> str:
    """The name of a check."""
    return _(_CHECKS[name])


def counts(verdicts: dict[str, int]) -> str:
    """For example "3 kept, 1 fixed, 0 broken, 0 failing"."""
    return ", ".join(f"{count:,} {_(kind)}" for kind, count in verdicts.items())


def expectation(case: dict[str, Any]) -> str:
    """What a case expects of the answer."""
    if case["expect"] == BASELINE:
        return _("as before training")
    threshold = f" \u2265 {case['threshold']:g}"
    return f"{case['expect']}{threshold}" + (f": {case['expected']}" if case["expected"] else "")
