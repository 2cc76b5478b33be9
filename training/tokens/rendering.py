"""Renders a row as the text that the model sees, and finds the answers in it. No torch.

An answer carries loss from the end of the generation prompt to the end token of its turn. Text that the template adds carries
none: the generation prompt, an empty thinking block, and anything after the end token.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from training.chat.rendering_settings import DEFAULT, ChatSettings, answer_weights, without_fields
from training.data.example import Example, Message, Row, answer_text
from training.errors import DataError
from training.tokens.answer_pieces import AnswerPieces
from training.tokens.answer_spans import AnswerSpans
from training.tokens.rendered import Pieces, Rendered, plainly, weighted
from training.tokens.template_text import TemplateText
from training.tokens.turn_ends import TurnEnds

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


class Renderer:
    """Renders rows with one tokenizer.

    To find the spans of a chat, it renders the beginning of the chat up to each answer. It caches the template's text around
    answers, so that most rows are rendered once.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", settings: ChatSettings = DEFAULT) -> None:
        """The tokenizer has the chat template; `settings` are its arguments, and which turns carry loss."""
        self._tokenizer, self._settings = tokenizer, settings
        self._text = TemplateText(tokenizer, settings)
        self._ends = TurnEnds(tokenizer, self._text)
        self._spans, self._pieces = AnswerSpans(self._text, self._ends), AnswerPieces(self._text, self._ends)

    @property
    def templates(self) -> bool:
        """True if the tokenizer has a chat template."""
        return self._tokenizer.chat_template is not None

    def render(self, example: Example) -> Rendered:
        """A row's text and the spans that carry loss. Raises DataError if the chat template cannot render it."""
        if not example.answered:
            return self._prompt_alone(example)
        if example.messages is None:
            start, end = len(example.prompt), len(example.prompt) + len(example.answer)
            return weighted(example.prompt + example.answer, [((start, end),)], [example.weight], templated=False)
        weights = answer_weights(example.messages, self._settings, example.weight)
        text, answers = self.turns(example.messages, example.tools)
        row = weighted(text, answers, weights, templated=self.templates)
        trained = [pieces for pieces, weight in zip(answers, weights, strict=True) if pieces and weight]
        unended = sum(not self._ends.marked(text, pieces[-1][1]) for pieces in trained) if self.templates else 0
        return replace(row, answers=tuple(answers), unended=unended)

    def _prompt_alone(self, example: Example) -> Rendered:
        """A row without an answer: its prompt as at inference, with an empty span where the answer begins."""
        text, messages = example.prompt, example.messages
        if messages is not None:
            blank = {"role": "assistant", "content": ""}
            rendered = self.generation_prompt(messages, example.tools) if self.templates else ""
            text = rendered or self.turns([*messages, blank], example.tools)[0]
        span = len(text), len(text)
        return Rendered(text, [span], templated=messages is not None and self.templates, ends=False)

    def turns(self, messages: list[Message], tools: list[Row] | None) -> tuple[str, list[Pieces | None]]:
        """The text of a chat, and the pieces of each answer; None for one that the template omits or rewrites."""
        messages = without_fields(messages, self._settings)
        if not self.templates:
            return plainly(messages)
        text = self._text(messages, tools)
        spans = self._spans.find(messages, tools, text)
        places = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        divided = [
            self._pieces.of(messages, index, tools, text, span) if span else ()
            for index, span in zip(places, spans, strict=True)
        ]
        text = self._ends.closed(messages, text, spans)
        through = [tuple((begin, self._ends.through_stop(text, end)) for begin, end in pieces) for pieces in divided]
        return text, [pieces or None for pieces in through]

    def generation_prompt(self, messages: list[Message], tools: list[Row] | None) -> str:
        """The text that the template writes before an answer to `messages`, as at inference. Raises DataError if the chat
        template cannot render it."""
        return self._text(without_fields(messages, self._settings), tools, add_generation_prompt=True)

    def question(self, example: Example) -> tuple[str, str]:
        """The text before the last answer of a row, as in training, and that answer."""
        if example.messages is None:
            return example.prompt, example.answer
        rendered = self.last_turn(example)
        if not example.answered:
            return rendered.text, ""
        answer = next(answer_text(turn) for turn in reversed(example.messages) if turn["role"] == "assistant")
        return rendered.text[: rendered.last_answer], answer

    def last_turn(self, example: Example) -> Rendered:
        """A row up to its last answer. Raises DataError if the chat template omits the answer or cannot render it."""
        if not example.messages or not example.answered:
            return self.render(replace(example, weight=1.0))
        last = max(index for index, message in enumerate(example.messages) if message["role"] == "assistant")
        text, answers = self.turns(example.messages[: last + 1], example.tools)
        found = [span for pieces in answers for span in pieces or ()]
        if not answers[-1]:
            message = "has an answer that the model's chat template omits or rewrites."
            raise DataError(message, "Change the roles or their order.")
        return Rendered(text, found, self.templates, answers=tuple(answers))
