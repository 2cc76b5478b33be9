"""The ends of answers: the tokens at which generation stops, and those that a template writes behind an answer. No torch."""

import re
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from training.data.example import Message
from training.errors import DataError
from training.model_info.end_tokens import end_ids
from training.tokens.changed_messages import PROBE
from training.tokens.rendered import Span
from training.tokens.template_text import TemplateText

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_LONGEST_TOKEN = 48  # characters
_CLOSING_CHARACTERS = 16  # maximum distance of the end token from the answer


class TurnEnds:
    """Finds the ends of answers in what one tokenizer's template writes."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", text: TemplateText) -> None:
        self._tokenizer, self._text = tokenizer, text

    @cached_property
    def special_tokens(self) -> tuple[str, ...]:
        """The tokenizer's special tokens."""
        added = self._tokenizer.added_tokens_decoder.values()
        return tuple({*self._tokenizer.all_special_tokens, *(token.content for token in added if token.special)})

    @cached_property
    def special(self) -> re.Pattern[str]:
        """A pattern of the special tokens; it matches nothing if there are none."""
        return re.compile(_any_of(self.special_tokens))

    @cached_property
    def usual(self) -> re.Pattern[str]:
        """A pattern of the tokens that usually end an answer."""
        return re.compile(_any_of(self._usual_ends))

    def marked(self, text: str, end: int) -> bool:
        """True if the text up to `end` ends with a special token, or one that usually ends an answer."""
        return text.endswith((*self._usual_ends, *self.special_tokens), 0, end)

    def closed(self, messages: list[Message], text: str, spans: list[Span | None]) -> str:
        """The text with the end of its last answer where the template writes that only before the next message."""
        if not spans or spans[-1] is None or messages[-1]["role"] != "assistant":
            return text
        end = spans[-1][1]
        if text[end:].strip() or self.marked(text, end):
            return text
        return text[:end] + (self._end_before_result if messages[-1].get("tool_calls") else self._end_before_question)

    def through_stop(self, text: str, end: int) -> int:
        """The end of an answer with the token at which generation stops, if only special tokens and white space are before it: a
        template may write it behind another one, or with it open the next turn."""
        if text.endswith(self._stops, 0, end):
            return end
        match = self._until_stop.match(text, end)
        return match.end() if match else end

    def of_turn(self, body: str, content: str) -> int:
        """The end of the part with loss: after the end token. `body` is the turn's text after the generation prompt."""
        if match := self._ending.search(body):
            end = self._stop.search(body, match.start(1)) or self.usual.search(body, match.start(1))
            return end.end() if end else match.end(1)
        return len(body) if body.endswith(content) else len(body.rstrip())

    def after(self, text: str, last: int, limit: int, *, calls: bool) -> int:
        """The end of the end token of a turn whose answer ends at `last` and whose next message begins at `limit`.

        Marks of tool calls may be special tokens and stand between both.
        """
        if not calls:
            limit = min(limit, last + _CLOSING_CHARACTERS + _LONGEST_TOKEN)
        match = self.usual.search(text, last, limit) or self.special.search(text, last, limit)
        if match and (calls or match.start() - last <= _CLOSING_CHARACTERS):
            return match.end()
        return last + len(text[last:limit].partition("\n")[0]) if calls else last

    @cached_property
    def _end_before_question(self) -> str:
        """What the template writes between an answer and a question, up to the token at which generation stops; "" if that is not
        such a token."""
        return self._end_before({"content": PROBE}, {"role": "user", "content": "?"})

    @cached_property
    def _end_before_result(self) -> str:
        call = {"type": "function", "function": {"name": PROBE, "arguments": {PROBE: PROBE}}}
        message = {"content": "", "tool_calls": [call | {"id": "abcdefgh1"}]}
        return self._end_before(message, {"role": "tool", "content": "?", "tool_call_id": "abcdefgh1", "name": PROBE})

    def _end_before(self, answer: Message, following: Message) -> str:
        messages = [{"role": "user", "content": "?"}, {"role": "assistant", **answer}]
        try:
            alone, text = self._text.write(messages, None).rstrip(), self._text.write([*messages, following], None)
        except DataError:  # of a template that needs other messages
            return ""
        match = self._until_stop.match(text, len(alone)) if text.startswith(alone) else None
        return match[0] if match else ""

    @cached_property
    def _stops(self) -> tuple[str, ...]:
        """The tokens at which generation stops: the tokenizer's end token, and those of the model's configuration."""
        tokenizer = self._tokenizer
        ids = end_ids(str(tokenizer.name_or_path or "")) & tokenizer.added_tokens_decoder.keys()
        ends = {tokenizer.added_tokens_decoder[one].content for one in ids}
        return tuple(ends | ({str(tokenizer.eos_token)} if tokenizer.eos_token else set()))

    @cached_property
    def _stop(self) -> re.Pattern[str]:
        return re.compile(_any_of(self._stops))

    @cached_property
    def _until_stop(self) -> re.Pattern[str]:
        return re.compile(rf"(?:\s|{self.special.pattern})*?(?:{_any_of(self._stops)})")

    @cached_property
    def _ending(self) -> re.Pattern[str]:
        """The first special token at the end of a text, where only special tokens and white space follow."""
        return re.compile(rf"({self.special.pattern})(?:\s|{self.special.pattern})*\Z")

    @cached_property
    def _usual_ends(self) -> tuple[str, ...]:
        """The tokenizer's end token, and the special token that the template writes after an answer without tool calls."""
        ends = set(self._stops)
        nearest = re.compile(rf".{{0,{_CLOSING_CHARACTERS}}}?({self.special.pattern})", re.DOTALL)
        question, answer = {"role": "user", "content": "?"}, {"role": "assistant", "content": PROBE}
        for messages in ([question, answer], [question, answer, question]):
            try:
                after = self._text.write(messages, None).rpartition(PROBE)[2]
            except DataError:  # of a template that needs other messages
                continue
            if match := nearest.match(after):
                ends.add(match[1])
        return tuple(ends)


def _any_of(texts: Sequence[str]) -> str:
    """A pattern that matches any of the texts, the longest first; nothing if there are none."""
    return "|".join(re.escape(text) for text in sorted(texts, key=len, reverse=True)) or r"(?!)"
