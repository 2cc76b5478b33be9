"""The texts of a row that each task needs, and how the part is rendered that a token store holds. No torch."""

from dataclasses import replace
from typing import TYPE_CHECKING

from training.chat.rendering_settings import DEFAULT, ChatSettings
from training.config.task import StoredText, Task, TaskTraits
from training.data.example import Example
from training.data.row_format import RowFormat, Rows
from training.errors import DataError
from training.tokens.coverage import Missing, missing
from training.tokens.rendered import Rendered
from training.tokens.rendering import Renderer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def _fits(traits: TaskTraits, row_format: str) -> bool:
    held = RowFormat(row_format).holds if row_format in set(RowFormat) else None  # a file whose format is not known
    if traits.pairs:
        return held is Rows.PAIRS
    if traits.labels_answers:
        return held is Rows.LABELED_ANSWERS
    if held is Rows.PROMPTS:
        return traits.samples
    return traits.is_language_modeling or held is Rows.ANSWERS


def misfit(task: Task, row_format: str) -> str | None:
    """The reason why a row format (training/data/row_formats.py) does not fit a task; None if it fits."""
    if _fits(task.traits, row_format):
        return None
    return f"has the format {row_format}, and task {task.value} needs {task.traits.rows}."


def tasks_of(row_format: str) -> list[Task]:
    """The tasks for which a row format is suitable."""
    return [task for task in Task if not misfit(task, row_format)]


class PartRenderer:
    """Renders one part of each row (see `StoredText`) with one tokenizer."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        part: StoredText,
        settings: ChatSettings = DEFAULT,
    ) -> None:
        self.part = part
        self._settings = settings
        self._renderer = Renderer(tokenizer, settings)

    def render(self, example: Example) -> Rendered:
        """The text of a row's part and the spans that carry loss. Raises DataError if the row has no such part, or the chat
        template cannot render it."""
        match self.part:
            case StoredText.WHOLE:
                return self._renderer.render(example)
            case StoredText.CHOSEN | StoredText.REJECTED:
                return self._answer_alone(self._own(example))
            case StoredText.SOURCE | StoredText.TARGET:
                return self._half(example)

    def missing(self, example: Example, rendered: Rendered) -> list[Missing]:
        """What of the row's part is not in its rendering, or carries no loss."""
        if self.part in (StoredText.SOURCE, StoredText.TARGET):
            return []
        own = self._own(example)
        return missing(own, rendered, self._settings, own.answer_turns if self.part else None)

    def _own(self, example: Example) -> Example:
        return _with_rejected(example) if self.part is StoredText.REJECTED else example

    def _answer_alone(self, example: Example) -> Rendered:
        """The row with loss only on its last answer; earlier answers count as the prompt."""
        rendered = self._renderer.render(example)
        turns = (example.messages or [])[-example.answer_turns :]
        answers = sum(message["role"] == "assistant" for message in turns) or 1
        pieces = sum(len(found or ()) for found in rendered.answers[-answers:]) if rendered.answers else answers
        return (
            replace(rendered, spans=rendered.spans[-pieces:], weights=rendered.weights[-pieces:])
            if pieces
            else rendered
        )

    def _half(self, example: Example) -> Rendered:
        source, target = self._renderer.question(example)
        if not source:
            raise DataError("has no prompt.", "Write rows with a prompt and an answer.", field="prompt")
        text = source if self.part is StoredText.SOURCE else target
        templated = self.part is StoredText.SOURCE and example.messages is not None and self._renderer.templates
        # A source has the tokens that the tokenizer gives it, as the model is used: no end token of its own.
        return Rendered(text, [(0, len(text))], templated=templated, ends=self.part is StoredText.TARGET)


def _with_rejected(example: Example) -> Example:
    """The row with its rejected answer in place of the chosen one."""
    if example.rejected is None:
        raise DataError(
            "has no rejected answer.", "Write rows with chosen and rejected, or use another task.", field="rejected"
        )
    if isinstance(example.rejected, str):
        return replace(example, answer=example.rejected)
    before = (example.messages or [])[: -example.answer_turns]
    return replace(example, messages=[*before, *example.rejected], answer_turns=len(example.rejected))
