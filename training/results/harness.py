"""Runs tasks of lm-eval (EleutherAI's evaluation harness) on a model, where it is installed."""

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from training.errors import UserError

PACKAGE = "lm_eval"


def check_installed(tasks: Sequence[str]) -> None:
    """Checks that lm-eval is installed on this machine.

    Raises:
        UserError: it is not.
    """
    if find_spec(PACKAGE) is None:
        fix = "Install it on the worker's machine, in the environment of Lathe: pip install lm-eval"
        raise UserError("lm_eval", ", ".join(tasks), "needs the package lm-eval, which is not installed.", fix)


def run_tasks(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, tasks: Sequence[str], limit: int | None
) -> dict[str, dict[str, Any]]:
    """Returns the metrics of each task by name, as lm-eval computes them on the first `limit` rows, with its standard errors.

    Raises:
        UserError: lm-eval does not know a task, or cannot run it.
    """
    from lm_eval import simple_evaluate
    from lm_eval.models.huggingface import HFLM

    try:
        found = simple_evaluate(
            HFLM(pretrained=model, tokenizer=tokenizer), tasks=list(tasks), limit=limit, log_samples=False
        )
    except (KeyError, ValueError, OSError) as error:
        fix = "`lm-eval ls tasks` lists the tasks. A task's data is downloaded from its hub."
        raise UserError("lm_eval", ", ".join(tasks), f"could not be run: {error}.", fix) from error
    return {
        task: {name: value for name, value in metrics.items() if isinstance(value, int | float | str)}
        for task, metrics in found["results"].items()
    }
