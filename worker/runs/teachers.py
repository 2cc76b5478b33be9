"""Why a run cannot learn from its teacher, as far as the files on this machine say; the run checks again what it loads."""

from collections.abc import Iterator
from pathlib import Path

from training.config.choices import Task
from training.errors import Problem, UserError
from training.model_info.config_json import read_config
from training.model_info.folder import adapter_base, describe_model
from training.model_info.vocabulary import refuse_other_tokens, vocabulary
from worker.runs.settle import Settled

_FIX = "Choose a decoder-only model as the teacher."


def teacher_problems(settled: Settled) -> Iterator[Problem]:
    """The problems of the setting `teacher`: the files of a model on the hub are not there yet."""
    if settled.config.task is not Task.DISTILL or settled.teacher is None:
        return
    if isinstance(settled.teacher, Problem):
        yield settled.teacher
        return
    try:
        _check(settled, settled.teacher)
    except UserError as error:
        yield Problem("teacher", settled.typed.teacher, error.message, error.fix)


def _check(settled: Settled, folder: Path) -> None:
    """Checks the teacher in a folder, which for an adapter is its base model with the adapter.

    Raises:
        UserError: it is no model that generates text, or has another tokenizer.
    """
    base = adapter_base(folder)
    name = str(folder) if base is None else base or settled.config.model
    if base and (problem := settled.allowed.model(base, "teacher")):
        raise UserError("teacher", base, f"is an adapter on {base}, which {problem.message}", problem.fix)
    path = describe_model(name).path
    if path and read_config(str(path)).get("is_encoder_decoder"):
        raise UserError("teacher", name, "is an encoder-decoder.", _FIX)
    own = vocabulary(settled.folder) if settled.folder else None
    others = vocabulary(folder) or (vocabulary(path) if path else None)
    if own and others:
        refuse_other_tokens(settled.typed.teacher, own, others)
