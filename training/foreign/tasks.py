"""Which task the name of a command or script says, and refuses those that Lathe does not train."""

import re
from collections.abc import Mapping
from typing import Any

from training.config.task import Task
from training.errors import UserError
from training.foreign.entries import tables

_TABLES = tables("tasks")
_TASKS = {word: task for task, words in _TABLES["tasks"].items() for word in words}
_OTHERS = {word: reason for reason, words in _TABLES["refused"].items() for word in words}
_COMMON = ("sft", "pretraining")  # of which a name such as run_clm_sft.py has both


def named_task(name: str) -> str | None:
    """The task that a name such as `run_dpo.py` says; None if it says none. Raises UserError if it names one that Lathe does not
    train."""
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower().removesuffix(".py")) if word]
    for word in (*words, "_".join(words[:2])):
        refuse(word, name)
    tasks = [_TASKS[word] for word in words if word in _TASKS]
    return next((task for task in tasks if task not in _COMMON), next(iter(sorted(tasks, reverse=True)), None))


def known_task(value: Any, names: Mapping[str, str], key: str) -> str:
    """The task of a program's name for it. Raises UserError if Lathe does not train it."""
    name = str(value).lower()
    refuse(name, f"{key}: {value}")
    if name not in names:
        raise UserError("task", f"{key}: {value}", "Lathe has no such task.", f"Lathe trains {', '.join(Task)}.")
    return names[name]


def refuse(word: str, given: str) -> None:
    """Checks that a word does not name training that Lathe does not have. Raises UserError if it does."""
    reason = _OTHERS.get(word.lower())
    if reason is not None:
        message = f"Lathe has no {reason.format(word.upper())}."
        raise UserError(
            "task", given, message, "Lathe trains sft, pretraining, seq2seq, dpo, orpo, kto, reward and classification."
        )
