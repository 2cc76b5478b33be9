"""From a row to the text that the model sees, and where the answers stand in it. No torch.

An answer carries loss from where the generation prompt ends to the token that ends the turn. What the template writes by
itself carries none: the generation prompt, an empty thinking block, and whatever follows the end token. Every turn of a
conversation is labelled alike.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from transformers import PreTrainedTokenizerBase

from training.failure import DataError
from training.shapes import Example, Message, Row

_CLOSING_CHARACTERS = 16  # how far behind an answer its end token may stand
_THINK = r"\w*(?i:think|thought|reason)\w*"
# A thinking block without a thought, such as <think>\n\n</think>\n\n, or the rest of one that the generation prompt opens.
_EMPTY_BLOCK = re.compile(rf"\s*(?:<({_THINK})>\s*</\1>|\[({_THINK})\]\s*\[/\2\]|</{_THINK}>)\s*")
_BLOCK_AT_END = re.compile(rf"\s*(?:<({_THINK})>\s*(?:</\1>)?|\[({_THINK})\]\s*(?:\[/\2\])?)\s*\Z")
_FRAMES = 4  # ways in which a template sets an answer that are remembered
Span = tuple[int, int]


@dataclass(frozen=True)
class Rendered:
    """The text of a row and the spans [start, end) of its answers, in characters.

    `templated` says that a chat template wrote it, with its own special tokens and the end of the last turn among them.
    """

    text: str
    spans: list[Span]
    templated: bool


@dataclass(frozen=True)
class _Frame:
    """What a template sets around an answer: `opening` before the model speaks, `lead` and `closing` as its own. Of the turn
    the first `unlearned` characters and all from the end of `closing` on carry no loss."""

    opening: str
    lead: str
    closing: str
    unlearned: int


class Renderer:
    """Renders rows with one tokenizer.

    The spans of a chat are found by rendering it piece by piece, twice an answer. What a template sets around an answer is
    learned from that, so that most rows are rendered once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, arguments: Mapping[str, Any] | None = None) -> None:
        """`arguments` are the chat template's own, such as enable_thinking."""
        self._tokenizer, self._arguments = tokenizer, arguments or {}
        self._frames: list[_Frame] = []

    @property
    def templates(self) -> bool:
        """Whether a chat template writes conversations."""
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
        """The text before the last answer of a row, as training sees it, and that answer."""
        if example.messages is None:
            return example.prompt, example.answer
        rendered = self.last_turn(example)
        answer = next(turn["content"] for turn in reversed(example.messages) if turn["role"] == "assistant")
        return rendered.text[: rendered.spans[-1][0]], str(answer)

    def last_turn(self, example: Example) -> Rendered:
        """A row up to its last answer.

        Raises:
            DataError: the chat template leaves the answer out or cannot render it.
        """
        messages = example.messages
        if messages:
            last = max(index for index, message in enumerate(messages) if message["role"] == "assistant")
            example = replace(example, messages=messages[: last + 1])
        rendered = self.render(example)
        if not rendered.spans:
            message = "has an answer that the model's chat template leaves out or rewrites."
            raise DataError(message, "Change the roles or their order.")
        return rendered

    def _quick_spans(self, messages: list[Message], text: str) -> list[Span] | None:
        """The spans where every answer stands in a frame known already; None where one does not."""
        answers = [message for message in messages if message["role"] == "assistant"]
        if not self._frames or any(message.get("tool_calls") for message in answers):
            return None
        opening = self._frames[0].opening
        if text.count(opening) != len(answers):  # a text that imitates the template is looked at closely
            return None
        spans, cursor = [], 0
        for message in answers:
            start = text.index(opening, cursor) + len(opening)
            framed = ((frame, frame.lead + message["content"] + frame.closing) for frame in self._frames)
            fits = next(((frame, body) for frame, body in framed if text.startswith(body, start)), None)
            if fits is None:
                return None
            frame, body = fits
            cursor = start + len(body)
            spans.append((start + frame.unlearned, cursor))
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
        """From the generation prompt's end to the turn's end, where the template renders a conversation piece by piece."""
        before = self._apply(messages[:index], tools, add_generation_prompt=True) if index else ""
        through = self._apply(messages[: index + 1], tools)
        if not (text.startswith(through) and through.startswith(before)):
            return None
        content, body = messages[index]["content"], through[len(before) :]
        begin, end = _unlearned(body, content), self._turn_end(body, content)
        if index and not messages[index].get("tool_calls"):
            asked = self._apply(messages[:index], tools) if len(self._frames) < _FRAMES else before
            self._learn(before.removeprefix(asked), body[:end], content, begin)
        return len(before) + begin, len(before) + end

    def _turn_end(self, body: str, content: str) -> int:
        """Where the part of a turn that carries loss ends: behind its end token. `body` is the text behind the generation
        prompt, up to the turn's end."""
        if found := self._ending.search(body):
            return found.end(1)
        return len(body) if body.endswith(content) else len(body.rstrip())

    @cached_property
    def _ending(self) -> re.Pattern[str]:
        """The first of the special tokens that end a text, with nothing but others and white space behind it."""
        return re.compile(rf"({self._special})(?:\s|{self._special})*\Z")

    @cached_property
    def _special(self) -> str:
        """A pattern of the tokenizer's special tokens; one that matches nothing where there are none."""
        added = self._tokenizer.added_tokens_decoder.values()
        special = {*self._tokenizer.all_special_tokens, *(token.content for token in added if token.special)}
        return "|".join(re.escape(token) for token in sorted(special, key=len, reverse=True)) or r"(?!)"

    def _learn(self, opening: str, body: str, content: str, unlearned: int) -> None:
        if not opening or len(content) < 2 or body.count(content) != 1:
            return
        lead, closing = body.split(content)
        frame = _Frame(opening, lead, closing, unlearned)
        fits = not self._frames or self._frames[0].opening == opening
        if fits and frame not in self._frames and len(self._frames) < _FRAMES:
            self._frames = sorted([*self._frames, frame], key=lambda one: (-len(one.lead), -len(one.closing)))

    def _span_by_content(
        self, messages: list[Message], index: int, tools: list[Row] | None, text: str, cursor: int
    ) -> Span | None:
        """Templates that rewrite earlier turns: the answer where it stands behind an opening, with the token that ends the
        turn."""
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
            self._learn(opening, text[begin:end], messages[index]["content"], _unlearned(text[begin:end], content))
        return start, end

    def _opening(self, messages: list[Message], tools: list[Row] | None, text: str, cursor: int) -> tuple[str, int]:
        """What stands before an answer to `messages`, and where in `text` it ends: the generation prompt, without a thinking
        block at its end. "" and `cursor` where there is none."""
        asked = self._apply(messages, tools) if messages else ""
        prompt = self._apply(messages, tools, add_generation_prompt=True).removeprefix(asked) if messages else ""
        opening = _BLOCK_AT_END.sub("", prompt)
        place = text.find(opening, cursor)
        return (opening, place + len(opening)) if opening and place >= 0 else ("", cursor)

    @cached_property
    def _closing(self) -> re.Pattern[str]:
        """The nearest special token."""
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
            message = "is rendered by the model's chat template into more text than fits in memory."
            raise DataError(message, "Mend chat_template in the model's folder.") from None
        except Exception as error:  # a template is a program and raises what it likes
            message = f"cannot be rendered by the model's chat template: {error}."
            raise DataError(message, "Change the roles or their order.") from error
        return str(text)


def _unlearned(body: str, content: str) -> int:
    """The length of an empty thinking block with which the template, and not the message, begins a turn."""
    block = _EMPTY_BLOCK.match(body)
    return block.end() if block and not _EMPTY_BLOCK.match(content) else 0


# For a model without a chat template: headings in plain words, each answer ended by a blank line.
_PLAIN_HEADINGS = {"system": "", "user": "### Instruction:\n", "assistant": "### Response:\n", "tool": "### Tool:\n"}


def _render_plainly(messages: list[Message]) -> tuple[str, list[Span]]:
    text, spans = "", []
    for message in messages:
        text += _PLAIN_HEADINGS[message["role"]]
        if message["role"] == "assistant":
            spans.append((len(text), len(text) + len(message["content"])))
        text += message["content"] + "\n\n"
    return text.removesuffix("\n\n") if messages and messages[-1]["role"] == "assistant" else text, spans
