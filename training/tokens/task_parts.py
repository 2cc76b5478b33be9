"""The texts of a row that each task needs. A task uses one or two token stores (training/batches/task_rows.py). No torch."""

from enum import StrEnum

from training.config.choices import Task


class StoredText(StrEnum):
    """Which text of a row a store holds, and which of it carries loss.

    WHOLE: prompt and answers; all answers carry loss. CHOSEN, REJECTED: the prompt with that answer; only it carries loss.
    SOURCE, TARGET: the prompt only, the last answer only.
    """

    WHOLE = ""
    CHOSEN = "chosen"
    REJECTED = "rejected"
    SOURCE = "source"
    TARGET = "target"


STORED_TEXTS: dict[Task, tuple[StoredText, ...]] = {
    Task.SFT: (StoredText.WHOLE,),
    Task.PRETRAINING: (StoredText.WHOLE,),
    Task.SEQ2SEQ: (StoredText.SOURCE, StoredText.TARGET),
    Task.DPO: (StoredText.CHOSEN, StoredText.REJECTED),
    Task.KTO: (StoredText.CHOSEN,),
    Task.ORPO: (StoredText.CHOSEN, StoredText.REJECTED),
    Task.REWARD: (StoredText.CHOSEN, StoredText.REJECTED),
    Task.CLASSIFICATION: (StoredText.SOURCE,),
}


_PAIRS = ("preference",)
_ANSWERED = ("alpaca", "sharegpt", "messages", "message tree", "prompt/completion", "source/target", "text/label")
_NEEDED = {
    Task.DPO: (_PAIRS, "chosen and rejected answers"),
    Task.ORPO: (_PAIRS, "chosen and rejected answers"),
    Task.REWARD: (_PAIRS, "chosen and rejected answers"),
    Task.KTO: (("unpaired preference",), "answers with a label, true or false"),
    Task.SEQ2SEQ: (_ANSWERED, "prompts with answers"),
    Task.CLASSIFICATION: (_ANSWERED, "texts with their class (text and label)"),
}


def misfit(task: Task, row_format: str) -> str | None:
    """The reason why a row format (training/data/row_formats.py) does not fit a task; None if it fits."""
    formats, wanted = _NEEDED.get(task, ((row_format,), ""))
    return None if row_format in formats else f"has the format {row_format}, and task {task.value} needs {wanted}."


def tasks_of(row_format: str) -> list[Task]:
    """The tasks for which a row format is suitable."""
    return [task for task in Task if not misfit(task, row_format)]
