"""From a row to the text that the model sees, and where the answers stand in it. No torch."""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from training.failure import DataError
from training.shapes import Example, Message, Row

_CLOSING_CHARACTERS = 16  # how far behind an answer its end token may stand
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
    """What a template sets around an answer: `opening` before the model speaks; `lead` and `closing` are learned with it."""

    opening: str
    lead: str
    closing: str


class Renderer:
    """Renders rows with one tokenizer.

    The spans of a chat are found by rendering it piece by piece, twice an answer. What a template sets around an answer is
    learned from that, so that most rows are rendered once.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
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
        """What the model is given to answer a row, and the answer expected: the last one of a conversation."""
        if example.messages is None:
            return example.prompt, example.answer
        last = max(index for index, message in enumerate(example.messages) if message["role"] == "assistant")
        before, answer = example.messages[:last], str(example.messages[last]["content"])
        if self._tokenizer.chat_template is None:
            return _render_plainly(before)[0] + _PLAIN_HEADINGS["assistant"], answer
        return self._apply(before, example.tools, add_generation_prompt=True), answer

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
            framed = (frame.lead + message["content"] + frame.closing for frame in self._frames)
            found = next((body for body in framed if text.startswith(body, start)), None)
            if found is None:
                return None
            cursor = start + len(found)
            spans.append((start, cursor))
        return spans

    def _spans(self, messages: list[Message], tools: list[Row] | None, text: str) -> list[Span]:
        spans, cursor = [], 0
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            span = self._span_by_prefix(messages, index, tools, text)
            span = span or self._span_by_content(message["content"], text, cursor)
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
        if index and not messages[index].get("tool_calls"):
            asked = self._apply(messages[:index], tools) if len(self._frames) < _FRAMES else before
            self._learn(before.removeprefix(asked), through[len(before) :], messages[index]["content"])
        return len(before), len(through)

    def _learn(self, opening: str, body: str, content: str) -> None:
        if not opening or len(content) < 2 or body.count(content) != 1:
            return
        lead, closing = body.split(content)
        frame = _Frame(opening, lead, closing)
        fits = not self._frames or self._frames[0].opening == opening
        if fits and frame not in self._frames and len(self._frames) < _FRAMES:
            self._frames = sorted([*self._frames, frame], key=lambda one: (-len(one.lead), -len(one.closing)))

    def _span_by_content(self, content: str, text: str, cursor: int) -> Span | None:
        """Templates that rewrite earlier turns: the answer where it stands in the text, with the token that ends the turn."""
        start = text.find(content.strip(), cursor)
        if start < 0 or not content.strip():
            return None
        end = start + len(content.strip())
        eos = str(self._tokenizer.eos_token or "")
        closed = text.find(eos, end, end + _CLOSING_CHARACTERS + len(eos)) if eos else -1
        return (start, closed + len(eos)) if closed >= 0 else (start, end)

    def _apply(self, messages: list[Message], tools: list[Row] | None, *, add_generation_prompt: bool = False) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, add_generation_prompt=add_generation_prompt
            )
        except MemoryError:
            message = "is rendered by the model's chat template into more text than fits in memory."
            raise DataError(message, "Mend chat_template in the model's folder.") from None
        except Exception as error:  # a template is a program and raises what it likes
            message = f"cannot be rendered by the model's chat template: {error}."
            raise DataError(message, "Change the roles or their order.") from error
        return str(text)


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
