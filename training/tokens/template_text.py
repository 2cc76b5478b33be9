"""The text that a chat template writes for messages, whichever form of them it takes. No torch."""

import json
import re
from functools import cached_property
from typing import TYPE_CHECKING

from training.chat.reasoning import ReasoningWriter
from training.chat.rendering_settings import ChatSettings
from training.chat.template import rendering_error, too_long
from training.data.example import Message, Row
from training.tokens.changed_messages import PROBE

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

THINK = r"\w*(?i:think|thought|reason)\w*"
_BLOCK_AT_END = re.compile(rf"\s*(?:<({THINK})>\s*(?:</\1>)?|\[({THINK})\]\s*(?:\[/\2\])?)\s*\Z")


class TemplateText:
    """Writes messages with the template of one tokenizer, its arguments, and the reasoning of earlier answers as configured."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", settings: ChatSettings) -> None:
        self._tokenizer, self._arguments = tokenizer, settings.template_arguments
        self._reasoning = ReasoningWriter(lambda messages: self.write(messages, None), settings.reasoning)

    def __call__(self, messages: list[Message], tools: list[Row] | None, *, add_generation_prompt: bool = False) -> str:
        """The text of the messages. Raises DataError if the template cannot render them."""
        return self._reasoning(messages, lambda given: self.write(given, tools, add_generation_prompt))

    def heading(self, messages: list[Message], tools: list[Row] | None) -> str:
        """The generation prompt after `messages`, without a thinking block at its end. Raises DataError as a call."""
        messages = messages or [{"role": "user", "content": "?"}]
        prompt = self(messages, tools, add_generation_prompt=True)
        return _BLOCK_AT_END.sub("", prompt.removeprefix(self(messages, tools)))

    def write(self, messages: list[Message], tools: list[Row] | None, add_generation_prompt: bool = False) -> str:
        """The text of the messages, with the reasoning that the template writes. Raises DataError as a call."""
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
        call = {"type": "function", "function": {"name": PROBE, "arguments": "{}"}}
        texts = []
        for content in ("", None):
            answer = {"role": "assistant", "content": content, "tool_calls": [call]}
            try:
                texts.append(self._template([{"role": "user", "content": "?"}, answer], None, False))
            except Exception:  # a template is a program and can raise any exception
                texts.append("")
        return PROBE not in texts[0] and PROBE in texts[1]

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
