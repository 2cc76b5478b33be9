"""Which task the name of a command or script says, and refuses those that Lathe does not train."""

import re
from collections.abc import Mapping
from typing import Any

from training.config.choices import Task
from training.errors import UserError

_TASKS = {
    "sft": "sft", "finetune": "sft", "finetuning": "sft", "dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo",
    "reward": "reward", "rm": "reward", "pt": "pretraining", "pretrain": "pretraining", "pretraining": "pretraining",
    "clm": "pretraining", "cpt": "pretraining", "summarization": "seq2seq", "translation": "seq2seq", "seq2seq": "seq2seq",
    "classification": "classification", "glue": "classification", "cls": "classification",
}  # fmt: skip
_COMMON = ("sft", "pretraining")  # of which a name such as run_clm_sft.py has both
_GENERATES = "training by generated answers ({0})"
_OTHERS = {
    **dict.fromkeys(("grpo", "gspo", "dapo", "rloo", "ppo", "reinforce", "nash", "xpo", "gdpo", "online"), _GENERATES),
    **dict.fromkeys(("gkd", "distill", "distillation", "opd", "gold"), "distillation ({0})"),
    **dict.fromkeys(("simpo", "cpo", "bco", "prm", "steerlm", "spin"), "task {0}; dpo and orpo are the nearest"),
    **dict.fromkeys(("mlm", "plm"), "masked language models ({0})"),
    **dict.fromkeys(("embedding", "reranker", "colbert"), "models for retrieval ({0})"),
    "run_qa": "extractive question answering",
    "run_ner": "token classification",
    "run_swag": "multiple choice",
    **dict.fromkeys(("dreambooth", "controlnet", "inversion"), "models of images ({0})"),
}


def named_task(name: str) -> str | None:
    """The task that a name such as `run_dpo.py` says; None if it says none.

    Raises:
        UserError: it names one that Lathe does not train.
    """
    words = [word for word in re.split(r"[^a-z0-9]+", name.lower().removesuffix(".py")) if word]
    for word in (*words, "_".join(words[:2])):
        refuse(word, name)
    tasks = [_TASKS[word] for word in words if word in _TASKS]
    return next((task for task in tasks if task not in _COMMON), next(iter(sorted(tasks, reverse=True)), None))


def known_task(value: Any, names: Mapping[str, str], key: str) -> str:
    """The task of a program's name for it.

    Raises:
        UserError: Lathe does not train it.
    """
    name = str(value).lower()
    refuse(name, f"{key}: {value}")
    if name not in names:
        raise UserError("task", f"{key}: {value}", "Lathe has no such task.", f"Lathe trains {', '.join(Task)}.")
    return names[name]


def refuse(word: str, given: str) -> None:
    """Checks that a word does not name training that Lathe does not have.

    Raises:
        UserError: it does.
    """
    reason = _OTHERS.get(word.lower())
    if reason is not None:
        message = f"Lathe has no {reason.format(word.upper())}."
        raise UserError(
            "task", given, message, "Lathe trains sft, pretraining, seq2seq, dpo, orpo, kto, reward and classification."
        )
