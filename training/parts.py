"""Which of a row's texts a token store holds. A task takes one store of a file or two (training/task_data.py). No torch."""

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from training.config import Task
from training.example import Example
from training.failure import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from training.rendering import Rendered


class Part(StrEnum):
    """WHOLE: prompt and answers, every answer learned. CHOSEN, REJECTED: the prompt with that answer, which alone is learned.

    SOURCE, TARGET: the prompt and the last answer apart.
    """

    WHOLE = ""
    CHOSEN = "chosen"
    REJECTED = "rejected"
    SOURCE = "source"
    TARGET = "target"


PARTS: dict[Task, tuple[Part, ...]] = {
    Task.SFT: (Part.WHOLE,),
    Task.PRETRAINING: (Part.WHOLE,),
    Task.SEQ2SEQ: (Part.SOURCE, Part.TARGET),
    Task.DPO: (Part.CHOSEN, Part.REJECTED),
    Task.KTO: (Part.CHOSEN,),
    Task.ORPO: (Part.CHOSEN, Part.REJECTED),
    Task.REWARD: (Part.CHOSEN, Part.REJECTED),
    Task.CLASSIFICATION: (Part.SOURCE,),
}


_PAIRS = ("preference",)
_ANSWERED = ("alpaca", "sharegpt", "messages", "prompt/completion", "source/target", "text/label")
_NEEDED = {
    Task.DPO: (_PAIRS, "chosen and rejected answers"),
    Task.ORPO: (_PAIRS, "chosen and rejected answers"),
    Task.REWARD: (_PAIRS, "chosen and rejected answers"),
    Task.KTO: (("unpaired preference",), "answers with a label, true or false"),
    Task.SEQ2SEQ: (_ANSWERED, "prompts with answers"),
    Task.CLASSIFICATION: (_ANSWERED, "texts with their class (text and label)"),
}


def misfit(task: Task, format: str) -> str | None:
    """What rows of a format (training/formats.py) lack for a task; None where nothing."""
    formats, wanted = _NEEDED.get(task, ((format,), ""))
    return None if format in formats else f"has the format {format}, and the task {task.value} needs {wanted}."


def tasks_of(format: str) -> list[Task]:
    """The tasks that rows of a format can train."""
    return [task for task in Task if not misfit(task, format)]


class PartRenderer:
    """Renders one part of rows with one tokenizer."""

    def __init__(
        self, tokenizer: "PreTrainedTokenizerBase", part: Part, template_arguments: Mapping[str, Any] | None = None
    ) -> None:
        from training.rendering import Renderer

        self.part = part
        self._renderer = Renderer(tokenizer, template_arguments)

    def render(self, example: Example) -> "Rendered":
        """The text of a row's part and the spans that carry loss.

        Raises:
            DataError: the row has no such part, or the chat template cannot render it.
        """
        match self.part:
            case Part.WHOLE:
                return self._renderer.render(example)
            case Part.CHOSEN:
                return self._answer_alone(example)
            case Part.REJECTED:
                return self._answer_alone(_with_rejected(example))
            case Part.SOURCE | Part.TARGET:
                return self._half(example)

    def _answer_alone(self, example: Example) -> "Rendered":
        """Earlier answers of a conversation are part of its prompt."""
        rendered = self._renderer.render(example)
        turns = (example.messages or [])[-example.answer_turns :]
        answers = sum(message["role"] == "assistant" for message in turns) or 1
        return replace(rendered, spans=rendered.spans[-answers:])

    def _half(self, example: Example) -> "Rendered":
        from training.rendering import Rendered

        source, target = self._renderer.question(example)
        if not source:
            raise DataError("has no prompt.", "Give rows with a prompt and an answer.", field="prompt")
        text = source if self.part is Part.SOURCE else target
        templated = self.part is Part.SOURCE and example.messages is not None and self._renderer.templates
        return Rendered(text, [(0, len(text))], templated=templated)


def _with_rejected(example: Example) -> Example:
    """The row with its rejected answer in the chosen one's place."""
    if example.rejected is None:
        raise DataError(
            "has no rejected answer.", "Give rows with chosen and rejected, or another task.", field="rejected"
        )
    if isinstance(example.rejected, str):
        return replace(example, answer=example.rejected)
    before = (example.messages or [])[: -example.answer_turns]
    return replace(example, messages=[*before, *example.rejected], answer_turns=len(example.rejected))
