"""Renders a row as the text that the model sees, and finds the answers in it. No torch.

An answer carries loss from the end of the generation prompt to the end token of its turn. Text that the template adds carries
none: the generation prompt, an empty thinking block, and anything after the end token.
"""

import json
import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING

from training.chat.reasoning import FIELDS, ReasoningWriter
from training.chat.rendering_settings import DEFAULT, ChatSettings, answer_weights, without_fields
from training.chat.template import rendering_error, too_long
from training.data.example import Example, Message, Row, answer_text
from training.errors import DataError
from training.model_info.end_tokens import end_ids

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONGEST_TOKEN = 48  # characters
_DISTINCT = 8  # characters of a message that hardly occur elsewhere by chance
_CLOSING_CHARACTERS = 16  # maximum distance of the end token from the answer
_PROBE = "\uf8a4"  # a private character, which no data set contains and no template changes
_THINK = r"\w*(?i:think|thought|reason)\w*"
# An empty thinking block, such as <think>\n\n</think>\n\n, or the rest of one that the generation prompt opens.
EMPTY_BLOCK = re.compile(rf"\s*(?:<({_THINK})>\s*</\1>|\[({_THINK})\]\s*\[/\2\]|</{_THINK}>)\s*")
_BLOCK_AT_END = re.compile(rf"\s*(?:<({_THINK})>\s*(?:</\1>)?|\[({_THINK})\]\s*(?:\[/\2\])?)\s*\Z")
_MAX_FRAMES = 4  # frames that a renderer caches
Span = tuple[int, int]
Pieces = tuple[Span, ...]
"""The parts of an answer between which a template writes what the model does not generate, such as the result of a call."""


@dataclass(frozen=True)
class Rendered:
    """The text of a row and the spans [start, end) of its answers, in characters, with the loss weight of each (default: 1).

    `templated` is True if a chat template wrote it, including special tokens and the end token of the last turn; else the end
    token, which is added if it `ends` with an answer, has the weight `end_weight`. `answers` has the span of every assistant
    message, with or without loss; None for one that the template omits. `unended` counts the answers with loss after which the
    template writes no end token.
    """

    text: str
    spans: list[Span]
    templated: bool
    weights: tuple[float, ...] = ()
    end_weight: float = 1.0
    answers: tuple[Pieces | None, ...] = ()
    unended: int = 0
    ends: bool = True

    @property
    def last_answer(self) -> int:
        """The character at which the last answer begins."""
        return self.answers[-1][0][0] if self.answers and self.answers[-1] else self.spans[-1][0]


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

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", settings: ChatSettings = DEFAULT) -> None:
        """The tokenizer has the chat template; `settings` are its arguments, and which turns carry loss."""
        self._tokenizer, self._settings = tokenizer, settings
        self._arguments = self._settings.template_arguments
        self._reasoning = ReasoningWriter(lambda messages: self._write(messages, None), self._settings.reasoning)
        self._frames: list[_Frame] = []
        self._rewritten_opening = ""  # the generation prompt, once a turn was met that the template rewrites later

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
            return _weighted(example.prompt + example.answer, [((start, end),)], [example.weight], templated=False)
        weights = answer_weights(example.messages, self._settings, example.weight)
        text, answers = self.turns(example.messages, example.tools)
        row = _weighted(text, answers, weights, templated=self.templates)
        marks = (*self._usual_ends, *self._special_tokens) if self.templates else ()
        trained = [pieces for pieces, weight in zip(answers, weights, strict=True) if pieces and weight]
        unended = sum(not text.endswith(marks, 0, pieces[-1][1]) for pieces in trained) if self.templates else 0
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
            text, plain = _render_plainly(messages)
            return text, [(span,) if span else None for span in plain]
        text = self._apply(messages, tools)
        spans = self._quick_spans(messages, text) or self._spans(messages, tools, text)
        places = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
        divided = [
            self._divided(messages, index, tools, text, span) if span else ()
            for index, span in zip(places, spans, strict=True)
        ]
        text = self._closed(messages, text, spans)
        through = [tuple((begin, self._through_stop(text, end)) for begin, end in pieces) for pieces in divided]
        return text, [pieces or None for pieces in through]

    def _closed(self, messages: list[Message], text: str, spans: list[Span | None]) -> str:
        """The text with the end of its last answer where the template writes that only before the next message."""
        if not spans or spans[-1] is None or messages[-1]["role"] != "assistant":
            return text
        end = spans[-1][1]
        if text[end:].strip() or text.endswith((*self._usual_ends, *self._special_tokens), 0, end):
            return text
        return text[:end] + (self._end_before_result if messages[-1].get("tool_calls") else self._end_before_question)

    @cached_property
    def _end_before_question(self) -> str:
        """What the template writes between an answer and a question, up to the token at which generation stops; "" if that is not
        such a token."""
        return self._end_before({"content": _PROBE}, {"role": "user", "content": "?"})

    @cached_property
    def _end_before_result(self) -> str:
        call = {"type": "function", "function": {"name": _PROBE, "arguments": {_PROBE: _PROBE}}}
        message = {"content": "", "tool_calls": [call | {"id": "abcdefgh1"}]}
        return self._end_before(message, {"role": "tool", "content": "?", "tool_call_id": "abcdefgh1", "name": _PROBE})

    def _end_before(self, answer: Message, following: Message) -> str:
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", **answer}]
        try:
            alone, text = self._write(messages, None).rstrip(), self._write([*messages, following], None)
        except DataError:  # of a template that needs other messages
            return ""
        match = self._until_stop.match(text, len(alone)) if text.startswith(alone) else None
        return match[0] if match else ""

    def _through_stop(self, text: str, end: int) -> int:
        """The end of an answer with the token at which generation stops, if only special tokens and white space are before it: a
        template may write it behind another one, or with it open the next turn."""
        if text.endswith(self._stops, 0, end):
            return end
        match = self._until_stop.match(text, end)
        return match.end() if match else end

    @cached_property
    def _stops(self) -> tuple[str, ...]:
        """The tokens at which generation stops: the tokenizer's end token, and those of the model's configuration."""
        tokenizer = self._tokenizer
        ids = end_ids(str(tokenizer.name_or_path or "")) & tokenizer.added_tokens_decoder.keys()
        ends = {tokenizer.added_tokens_decoder[one].content for one in ids}
        return tuple(ends | ({str(tokenizer.eos_token)} if tokenizer.eos_token else set()))

    @cached_property
    def _until_stop(self) -> re.Pattern[str]:
        return re.compile(rf"(?:\s|{self._special})*?(?:{_any_of(self._stops)})")

    @cached_property
    def _stop(self) -> re.Pattern[str]:
        return re.compile(_any_of(self._stops))

    def _divided(self, messages: list[Message], index: int, tools: list[Row] | None, text: str, span: Span) -> Pieces:
        """The pieces of an answer with calls: the template may write their results, or the heading of a turn, between its
        reasoning, its calls and its text. Each part is found by changing it alone."""
        if not messages[index].get("tool_calls"):
            return (span,)

        def region(place: int, other: Message) -> Span | None:
            changed = self._apply([*messages[:place], other, *messages[place + 1 :]], tools)
            return _difference(text, changed) if changed != text else None

        end = next(
            (place for place in range(index + 1, len(messages)) if messages[place]["role"] != "tool"), len(messages)
        )
        results = [found for place in range(index + 1, end) if (found := region(place, _another(messages[place])))]
        parts = [(found, opens) for other, opens in _each_changed(messages[index]) if (found := region(index, other))]
        first, last = span[0], max([span[1], *(part[1] for part, _ in parts)])
        between = sorted(one for one in results if first < one[1] and one[0] < last)
        heading = self._generation_prompt(messages[:index], tools)
        if not between and span[1] == last:
            return tuple(_without(heading, text, span))
        following = messages[end]["content"].strip() if end < len(messages) else ""
        limit = text.find(following, last) if following else len(text)
        divided = self._between(text, first, parts, [*between, (limit, limit)])
        return tuple(piece for one in divided for piece in _without(heading, text, one))

    def _between(self, text: str, begin: int, parts: list[tuple[Span, bool]], others: list[Span]) -> Iterator[Span]:
        """The pieces of an answer from `begin`, whose `parts` are divided by `others`; each part with True if a special token
        before it belongs to it."""
        marks = [(match.start(), match.end()) for match in re.compile(self._special).finditer(text, begin)]
        for number, (before, after) in enumerate(others):
            mine = [part for part in parts if begin <= part[0][0] and part[0][1] <= before]
            if mine:
                (start, _), opens = min(mine)
                gap = [mark for mark in marks if begin <= mark[0] and mark[1] <= start] if number else []
                first = gap[-1][0 if opens else 1] if gap else begin
                last = max(part[1] for part, _ in mine)
                end = self._ends.search(text, last, before)  # behind text, another special token may open the next turn
                calls = max(mine)[1]
                yield first, self._end_after(text, last, before, calls=True) if calls else end.end() if end else last
            begin = after

    def generation_prompt(self, messages: list[Message], tools: list[Row] | None) -> str:
        """The text that the template writes before an answer to `messages`, as at inference. Raises DataError if the chat
        template cannot render it."""
        return self._apply(without_fields(messages, self._settings), tools, add_generation_prompt=True)

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

    def _quick_spans(self, messages: list[Message], text: str) -> list[Span | None] | None:
        """The spans if every answer is in a cached frame, else None."""
        answers = [message for message in messages if message["role"] == "assistant"]
        if not self._frames or any(message.get("tool_calls") for message in answers):
            return None
        opening = self._frames[0].opening
        if text.count(opening) != len(answers):  # a message contains the template's text
            return None
        spans: list[Span | None] = []
        cursor = 0
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

    def _spans(self, messages: list[Message], tools: list[Row] | None, text: str) -> list[Span | None]:
        spans: list[Span | None] = []
        cursor = 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            by_change = partial(self._span_by_change, messages, index, tools, text, cursor)
            span = by_change() if self._rewritten_opening else None
            span = span or self._span_by_prefix(messages, index, tools, text) or by_change()
            spans.append(span)
            cursor = span[1] if span else cursor
        return spans

    def _span_by_prefix(self, messages: list[Message], index: int, tools: list[Row] | None, text: str) -> Span | None:
        """The span from the end of the generation prompt to the end of the turn; None if the template rewrites earlier turns."""
        if not index:  # templates render no generation prompt without a message
            return None
        before = self._apply(messages[:index], tools, add_generation_prompt=True)
        through = self._apply(messages[: index + 1], tools)
        if not (text.startswith(through) and through.startswith(before)):
            return None
        content, body = messages[index]["content"], through[len(before) :]
        begin, end = _empty_block(body, content), self._turn_end(body, content)
        if not messages[index].get("tool_calls"):
            prompt = self._apply(messages[:index], tools) if len(self._frames) < _MAX_FRAMES else before
            self._cache(before.removeprefix(prompt), body[:end], content, begin)
        return len(before) + begin, len(before) + end

    def _turn_end(self, body: str, content: str) -> int:
        """The end of the part with loss: after the end token. `body` is the turn's text after the generation prompt."""
        if match := self._ending.search(body):
            end = self._stop.search(body, match.start(1)) or self._ends.search(body, match.start(1))
            return end.end() if end else match.end(1)
        return len(body) if body.endswith(content) else len(body.rstrip())

    @cached_property
    def _ending(self) -> re.Pattern[str]:
        """The first special token at the end of a text, where only special tokens and white space follow."""
        return re.compile(rf"({self._special})(?:\s|{self._special})*\Z")

    @cached_property
    def _special(self) -> str:
        """A pattern of the tokenizer's special tokens; it matches nothing if there are none."""
        return _any_of(self._special_tokens)

    @cached_property
    def _special_tokens(self) -> tuple[str, ...]:
        added = self._tokenizer.added_tokens_decoder.values()
        return tuple({*self._tokenizer.all_special_tokens, *(token.content for token in added if token.special)})

    def _cache(self, opening: str, body: str, content: str, unlabeled: int) -> None:
        if not opening or len(content) < 2 or body.count(content) != 1:
            return
        lead, closing = body.split(content)
        frame = _Frame(opening, lead, closing, unlabeled)
        same_opening = not self._frames or self._frames[0].opening == opening
        if same_opening and frame not in self._frames and len(self._frames) < _MAX_FRAMES:
            self._frames = sorted([*self._frames, frame], key=lambda item: (-len(item.lead), -len(item.closing)))

    def _span_by_change(
        self, messages: list[Message], index: int, tools: list[Row] | None, text: str, cursor: int
    ) -> Span | None:
        """The span of an answer from its opening to its end token, found by what changes in `text` if the answer is another one.

        For templates that write a turn in another way if it is not the last one. None if nothing changes.
        """
        message = messages[index]
        other = self._apply([*messages[:index], _another(message), *messages[index + 1 :]], tools)
        if other == text:
            return None
        first, last = _difference(text, other)
        opening, begin = self._opening(messages[:index], tools, text, cursor, first)
        begin = begin if opening else first
        following = messages[index + 1]["content"].strip() if index + 1 < len(messages) else ""
        limit = text.find(following, last) if following else len(text)
        if limit < 0 and (limit := text.find(following, first, last)) >= 0:
            last = first  # the template writes a part of the answer after the next message
        limit = limit if limit >= 0 else len(text)
        end = self._end_after(text, last, limit, calls=bool(message.get("tool_calls")))
        unlabeled = _empty_block(text[begin:end], message["content"])
        if opening and end > last and not message.get("tool_calls"):
            self._cache(opening, text[begin:end], message["content"], unlabeled)
        return begin + unlabeled, end

    def _end_after(self, text: str, last: int, limit: int, *, calls: bool) -> int:
        """The end of the end token of a turn whose answer ends at `last` and whose next message begins at `limit`.

        Marks of tool calls may be special tokens and stand between both.
        """
        if not calls:
            limit = min(limit, last + _CLOSING_CHARACTERS + _LONGEST_TOKEN)
        match = self._ends.search(text, last, limit) or re.compile(self._special).search(text, last, limit)
        if match and (calls or match.start() - last <= _CLOSING_CHARACTERS):
            return match.end()
        return last + len(text[last:limit].partition("\n")[0]) if calls else last

    def _opening(
        self, messages: list[Message], tools: list[Row] | None, text: str, cursor: int, limit: int
    ) -> tuple[str, int]:
        """The generation prompt after `messages`, without a thinking block at its end, and where it ends in `text`, before
        `limit` and after the last message; "" and `cursor` if it does not occur."""
        asked = messages[-1]["content"].strip() if messages else ""
        for known in (True, False):
            opening = self._rewritten_opening if known else self._generation_prompt(messages, tools)
            place = text.rfind(opening, cursor, limit) if opening else -1
            end = place + len(opening)
            if place >= 0 and (len(asked) < _DISTINCT or text.find(asked, end, limit) < 0):
                self._rewritten_opening = opening
                return opening, end
        return "", cursor

    def _generation_prompt(self, messages: list[Message], tools: list[Row] | None) -> str:
        messages = messages or [{"role": "user", "content": "?"}]
        prompt = self._apply(messages, tools, add_generation_prompt=True)
        return _BLOCK_AT_END.sub("", prompt.removeprefix(self._apply(messages, tools)))

    @cached_property
    def _ends(self) -> re.Pattern[str]:
        """A pattern of the tokens that usually end an answer."""
        return re.compile(_any_of(self._usual_ends))

    @cached_property
    def _usual_ends(self) -> tuple[str, ...]:
        """The tokenizer's end token, and the special token that the template writes after an answer without tool calls."""
        ends = set(self._stops)
        nearest = re.compile(rf".{{0,{_CLOSING_CHARACTERS}}}?({self._special})", re.DOTALL)
        question, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": _PROBE}
        for messages in ([question, answer], [question, answer, question]):
            try:
                after = self._write(messages, None).rpartition(_PROBE)[2]
            except DataError:  # of a template that needs other messages
                continue
            if match := nearest.match(after):
                ends.add(match[1])
        return tuple(ends)

    def _apply(self, messages: list[Message], tools: list[Row] | None, *, add_generation_prompt: bool = False) -> str:
        return self._reasoning(messages, lambda given: self._write(given, tools, add_generation_prompt))

    def _write(self, messages: list[Message], tools: list[Row] | None, add_generation_prompt: bool = False) -> str:
        try:
            text = self._templated(messages, tools, add_generation_prompt)
        except Exception as error:  # a template is a program and can raise any exception
            written = [_with_written_arguments(message) for message in messages]
            if isinstance(error, MemoryError | TimeoutError) or written == messages:
                raise rendering_error(error) from error
            try:  # some templates join the arguments of calls as text
                text = self._templated(written, tools, add_generation_prompt)
            except Exception:
                raise rendering_error(error) from error
        if problem := too_long(text):
            raise problem
        return text

    def _templated(self, messages: list[Message], tools: list[Row] | None, add_generation_prompt: bool) -> str:
        if (
            any(message.get("tool_calls") and not message["content"] for message in messages)
            and self._null_before_calls
        ):
            empty = [bool(message.get("tool_calls")) and not message["content"] for message in messages]
            messages = [one | {"content": None} if null else one for one, null in zip(messages, empty, strict=True)]
        return self._template(messages, tools, add_generation_prompt)

    @cached_property
    def _null_before_calls(self) -> bool:
        """True if the template writes the calls of a message only if its content is null."""
        call = {"type": "function", "function": {"name": _PROBE, "arguments": "{}"}}
        texts = []
        for content in ("", None):
            answer = {"role": "assistant", "content": content, "tool_calls": [call]}
            try:
                texts.append(self._template([{"role": "user", "content": "?"}, answer], None, False))
            except Exception:  # a template is a program and can raise any exception
                texts.append("")
        return _PROBE not in texts[0] and _PROBE in texts[1]

    def _template(self, messages: list[Message], tools: list[Row] | None, add_generation_prompt: bool) -> str:
        return str(
            self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt, **self._arguments
            )
        )


def _with_written_arguments(message: Message) -> Message:
    """The message with the arguments of its calls as JSON text."""
    if not message.get("tool_calls"):
        return message
    return message | {"tool_calls": [_written(call) for call in message["tool_calls"]]}


def _written(call: Row) -> Row:
    if isinstance(call.get("function"), dict):
        return call | {"function": _written(call["function"])}
    arguments = call.get("arguments")
    return call if isinstance(arguments, str) else call | {"arguments": json.dumps(arguments, ensure_ascii=False)}


def _any_of(texts: Sequence[str]) -> str:
    """A pattern that matches any of the texts, the longest first; nothing if there are none."""
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)"


def _another(message: Message) -> Message:
    """The message with another text, reasoning and arguments of its calls; what is empty stays empty."""
    changed = {key: value for key, value in message.items() if key not in FIELDS}
    changed["content"] = _PROBE if message["content"].strip() else message["content"]
    if message.get("tool_calls"):
        changed["tool_calls"] = [_other_call(call) for call in message["tool_calls"]]
    elif not changed["content"].strip() and len(changed) < len(message):
        changed["content"] = _PROBE
    return changed


def _each_changed(message: Message) -> Iterator[tuple[Message, bool]]:
    """The message with another one of its parts, and True if a special token before the part belongs to it: reasoning, each call,
    text."""
    for field in FIELDS:
        if isinstance(message.get(field), str) and message[field].strip():
            yield message | {field: _PROBE}, True
    calls = message.get("tool_calls") or []
    for number, call in enumerate(calls):
        yield message | {"tool_calls": [*calls[:number], _other_call(call), *calls[number + 1 :]]}, True
    if message["content"].strip():
        yield message | {"content": _PROBE}, False


def _without(heading: str, text: str, span: Span) -> Iterator[Span]:
    """The parts of a span between the headings of a turn."""
    begin, end = span
    while heading.strip() and (place := text.find(heading, begin, end)) >= 0:
        if place > begin:
            yield begin, place
        begin = place + len(heading)
    if begin < end:
        yield begin, end


def _other_call(call: Row) -> Row:
    if isinstance(call.get("function"), dict):
        return call | {"function": _other_call(call["function"])}
    return call | {"arguments": _PROBE if isinstance(call.get("arguments"), str) else {_PROBE: _PROBE}}


def _difference(text: str, other: str) -> Span:
    """The part [start, end) of `text` that differs from `other`; empty if `other` only has more."""
    first = bisect_left(range(1, min(len(text), len(other)) + 1), True, key=lambda size: text[:size] != other[:size])
    longest = min(len(text), len(other)) - first
    same = bisect_left(range(1, longest + 1), True, key=lambda size: text[-size:] != other[-size:])
    return first, len(text) - same


def _empty_block(body: str, content: str) -> int:
    """The length of an empty thinking block that the template, not the message, puts at the start of a turn."""
    block = EMPTY_BLOCK.match(body)
    if block is None or EMPTY_BLOCK.match(content):
        return 0
    begin = body.find(content) if content.strip() else -1  # white space at its start is the answer's own
    return min(block.end(), begin) if begin >= 0 else block.end()


# For a model without a chat template: headings, and a blank line after each message.
_PLAIN_HEADINGS = {"system": "", "user": "### Instruction:\n", "assistant": "### Response:\n", "tool": "### Tool:\n"}


def _render_plainly(messages: list[Message]) -> tuple[str, list[Span | None]]:
    text = ""
    spans: list[Span | None] = []
    for message in messages:
        text += _PLAIN_HEADINGS[message["role"]]
        if message["role"] == "assistant":
            spans.append((len(text), len(text) + len(message["content"])))
        text += message["content"] + "\n\n"
    return text.removesuffix("\n\n") if messages and messages[-1]["role"] == "assistant" else text, spans


def _weighted(text: str, answers: Sequence[Pieces | None], weights: list[float], *, templated: bool) -> Rendered:
    """The row with the pieces of the answers whose weight is above 0."""
    found = zip(answers, weights, strict=True)
    kept = [(span, weight) for pieces, weight in found for span in pieces or () if weight]
    several = tuple(weight for _, weight in kept) if any(weight != 1 for _, weight in kept) else ()
    return Rendered(text, [span for span, _ in kept], templated, several, weights[-1] if weights else 0.0)
