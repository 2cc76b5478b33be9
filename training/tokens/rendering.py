"""Renders a row as the text that the model sees, and finds the answers in it. No torch.

An answer carries loss from the end of the generation prompt to the end token of its turn. Text that the template adds carries
none: the generation prompt, an empty thinking block, and anything after the end token. All turns of a conversation are labeled
in the same way.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from training.data.example import Example, Message, Row
from training.errors import DataError
from training.tokens.task_parts import StoredText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_CLOSING_CHARACTERS = 16  # maximum distance of the end token from the answer
_THINK = r"\w*(?i:think|thought|reason)\w*"
# An empty thinking block, such as <think>\n\n</think>\n\n, or the rest of one that the generation prompt opens.
_EMPTY_BLOCK = re.compile(rf"\s*(?:<({_THINK})>\s*</\1>|\[({_THINK})\]\s*\[/\2\]|</{_THINK}>)\s*")
_BLOCK_AT_END = re.compile(rf"\s*(?:<({_THINK})>\s*(?:</\1>)?|\[({_THINK})\]\s*(?:\[/\2\])?)\s*\Z")
_MAX_FRAMES = 4  # frames that a renderer caches
Span = tuple[int, int]


@dataclass(frozen=True)
class Rendered:
    """The text of a row and the spans [start, end) of its answers, in characters.

    `templated` is True if a chat template wrote it, including special tokens and the end token of the last turn.
    """

    text: str
    spans: list[Span]
    templated: bool


@dataclass(frozen=True)
class _Frame:
    """The text of a template around an answer: the generation prompt (`opening`), then `lead`, the answer, and `closing`. The
    first `unlabeled` characters after the opening carry no loss."""

    opening: str
    lead: str
    closing: str
    unlabeled: int


class Renderer:
    """Renders rows with one tokenizer.

    To find the spans of a chat, it renders the beginning of the chat up to each answer. It caches the template's text around
    answers, so that most rows are rendered once.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", arguments: Mapping[str, Any] | None = None) -> None:
        """`arguments` are those of the chat template, such as enable_thinking."""
        self._tokenizer, self._arguments = tokenizer, arguments or {}
        self._frames: list[_Frame] = []

    @property
    def templates(self) -> bool:
        """True if the tokenizer has a chat template."""
        return self._tokenizer.chat_template is not None

    def render(self, example: Example) -> Rendered:
        """A row's text and the spans that carry loss.

        Raises:
            DataError: the chat template cannot render it.
        """
        if example.messages is None:
            start, end = len(example.prompt), len(example.prompt) + len(example.answer)
            return Rendered(example.prompt + example.answer, [(start, end)], templated=False)
        if self._tokenizer.chat_template is None:
            return Rendered(*_render_plainly(example.messages), templated=False)
        text = self._apply(example.messages, example.tools)
        spans = self._quick_spans(example.messages, text)
        if spans is None:
            spans = self._spans(example.messages, example.tools, text)
        return Rendered(text, spans, templated=True)

    def question(self, example: Example) -> tuple[str, str]:
        """The text before the last answer of a row, as in training, and that answer."""
        if example.messages is None:
            return example.prompt, example.answer
        rendered = self.last_turn(example)
        answer = next(turn["content"] for turn in reversed(example.messages) if turn["role"] == "assistant")
        return rendered.text[: rendered.spans[-1][0]], str(answer)

    def last_turn(self, example: Example) -> Rendered:
        """A row up to its last answer.

        Raises:
            DataError: the chat template omits the answer or cannot render it.
        """
        messages = example.messages
        if messages:
            last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
            example = replace(example, messages=messages[: last + 1])
        rendered = self.render(example)
        if not rendered.spans:
            message = "has an answer that the model's chat template omits or rewrites."
            raise DataError(message, "Change the roles or their order.")
        return rendered

    def _quick_spans(self, messages: list[Message], text: str) -> list[Span] | None:
        """The spans if every answer is in a cached frame, else None."""
        answers = [message for message in messages if message["role"] == "assistant"]
        if not self._frames or any(message.get("tool_calls") for message in answers):
            return None
        opening = self._frames[0].opening
        if text.count(opening) != len(answers):  # a message contains the template's text
            return None
        spans, cursor = [], 0
        for message in answers:
            start = text.index(opening, cursor) + len(opening)
            framed = ((frame, frame.lead + message["content"] + frame.closing) for frame in self._frames)
            match = next(((frame, body) for frame, body in framed if text.startswith(body, start)), None)
            if match is None:
                return None
            frame, body = match
            cursor = start + len(body)
            spans.append((start + frame.unlabeled, cursor))
        return spans

    def _spans(self, messages: list[Message], tools: list[Row] | None, text: str) -> list[Span]:
        spans, cursor = [], 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            span = self._span_by_prefix(messages, index, tools, text)
            span = span or self._span_by_content(messages, index, tools, text, cursor)
            if span:
                spans.append(span)
                cursor = span[1]
        return spans

    def _span_by_prefix(self, messages: list[Message], index: int, tools: list[Row] | None, text: str) -> Span | None:
        """The span from the end of the generation prompt to the end of the turn; None if the template rewrites earlier turns."""
        before = self._apply(messages[:index], tools, add_generation_prompt=True) if index else ""
        through = self._apply(messages[: index + 1], tools)
        if not (text.startswith(through) and through.startswith(before)):
            return None
        content, body = messages[index]["content"], through[len(before) :]
        begin, end = _empty_block(body, content), self._turn_end(body, content)
        if index and not messages[index].get("tool_calls"):
            prompt = self._apply(messages[:index], tools) if len(self._frames) < _MAX_FRAMES else before
            self._cache(before.removeprefix(prompt), body[:end], content, begin)
        return len(before) + begin, len(before) + end

    def _turn_end(self, body: str, content: str) -> int:
        """The end of the part with loss: after the end token. `body` is the turn's text after the generation prompt."""
        if match := self._ending.search(body):
            return match.end(1)
        return len(body) if body.endswith(content) else len(body.rstrip())

    @cached_property
    def _ending(self) -> re.Pattern[str]:
        """The first special token at the end of a text, where only special tokens and white space follow."""
        return re.compile(rf"({self._special})(?:\s|{self._special})*\Z")

    @cached_property
    def _special(self) -> str:
        """A pattern of the tokenizer's special tokens; it matches nothing if there are none."""
        added = self._tokenizer.added_tokens_decoder.values()
        special = {*self._tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        return "|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)) or r"(?!)"

    def _cache(self, opening: str, body: str, content: str, unlabeled: int) -> None:
        if not opening or len(content) < 2 or body.count(content) != 1:
            return
        lead, closing = body.split(content)
        frame = _Frame(opening, lead, closing, unlabeled)
        same_opening = not self._frames or self._frames[0].opening == opening
        if same_opening and frame not in self._frames and len(self._frames) < _MAX_FRAMES:
            self._frames = sorted([*self._frames, frame], key=lambda item: (-len(item.lead), -len(item.closing)))

    def _span_by_content(
        self, messages: list[Message], index: int, tools: list[Row] | None, text: str, cursor: int
    ) -> Span | None:
        """The span of an answer after its opening, with the end token; for templates that rewrite earlier turns."""
        content = messages[index]["content"].strip()
        if not content:
            return None
        opening, begin = self._opening(messages[:index], tools, text, cursor)
        start = text.find(content, begin)
        if start < 0:
            return None
        closing = self._closing.match(text, start + len(content))
        end = closing.end() if closing else start + len(content)
        if opening and closing:
            self._cache(opening, text[begin:end], messages[index]["content"], _empty_block(text[begin:end], content))
        return start, end

    def _opening(self, messages: list[Message], tools: list[Row] | None, text: str, cursor: int) -> tuple[str, int]:
        """The generation prompt after `messages`, without a thinking block at its end, and where it ends in `text`; "" and
        `cursor` if it does not occur."""
        before = self._apply(messages, tools) if messages else ""
        prompt = self._apply(messages, tools, add_generation_prompt=True).removeprefix(before) if messages else ""
        opening = _BLOCK_AT_END.sub("", prompt)
        place = text.find(opening, cursor)
        return (opening, place + len(opening)) if opening and place >= 0 else ("", cursor)

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        """The text up to the nearest special token, including it."""
        return re.compile(rf".{{0,{_CLOSING_CHARACTERS}}}?(?:{self._special})", re.DOTALL)

    def _apply(self, messages: list[Message], tools: list[Row] | None, *, add_generation_prompt: bool = False) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=tools,
                tokenize=False,
                add_generation_prompt=add_generation_prompt,
                **self._arguments,
            )
        except MemoryError:
            message = "is rendered by the model's chat template to more text than fits in memory."
            raise DataError(message, "Fix chat_template in the model's folder.") from None
        except Exception as error:  # a template is a program and can raise any exception
            message = f"cannot be rendered by the model's chat template: {error}."
            raise DataError(message, "Change the roles or their order.") from error
        return str(text)


def _empty_block(body: str, content: str) -> int:
    """The length of an empty thinking block that the template, not the message, puts at the start of a turn."""
    block = _EMPTY_BLOCK.match(body)
    return block.end() if block and not _EMPTY_BLOCK.match(content) else 0


# For a model without a chat template: headings, and a blank line after each message.
_PLAIN_HEADINGS = {"system": "", "user": "### Instruction:\n", "assistant": "### Response:\n", "tool": "### Tool:\n"}


def _render_plainly(messages: list[Message]) -> tuple[str, list[Span]]:
    text, spans = "", []
    for message in messages:
        text += _PLAIN_HEADINGS[message["role"]]
        if message["role"] == "assistant":
            spans.append((len(text), len(text) + len(message["content"])))
        text += message["content"] + "\n\n"
    return text.removesuffix("\n\n") if messages and messages[-1]["role"] == "assistant" else text, spans


class PartRenderer:
    """Renders one part of each row (see `StoredText`) with one tokenizer."""

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        part: StoredText,
        template_arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self.part = part
        self._renderer = Renderer(tokenizer, template_arguments)

    def render(self, example: Example) -> "Rendered":
        """The text of a row's part and the spans that carry loss.

        Raises:
            DataError: the row has no such part, or the chat template cannot render it.
        """
        match self.part:
            case StoredText.WHOLE:
                return self._renderer.render(example)
            case StoredText.CHOSEN:
                return self._answer_alone(example)
            case StoredText.REJECTED:
                return self._answer_alone(_with_rejected(example))
            case StoredText.SOURCE | StoredText.TARGET:
                return self._half(example)

    def _answer_alone(self, example: Example) -> "Rendered":
        """The row with loss only on its last answer; earlier answers count as the prompt."""
        rendered = self._renderer.render(example)
        turns = (example.messages or [])[-example.answer_turns :]
        answers = sum(message["role"] == "assistant" for message in turns) or 1
        return replace(rendered, spans=rendered.spans[-answers:])

    def _half(self, example: Example) -> "Rendered":
        source, target = self._renderer.question(example)
        if not source:
            raise DataError("has no prompt.", "Write rows with a prompt and an answer.", field="prompt")
        text = source if self.part is StoredText.SOURCE else target
        templated = self.part is StoredText.SOURCE and example.messages is not None and self._renderer.templates
        return Rendered(text, [(0, len(text))], templated=templated)


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
