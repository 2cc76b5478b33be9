"""The chat template of a model or adapter folder, and its parts if it only joins texts: what stands before and after each message.

Programs with template languages of their own (Ollama) can use the parts in place of the template. No torch.

`python -m training.model_info.chat_template` computes the parts in a process with limits: a template is a program that comes with
a model, and may ask for any time and memory.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training import json_files
from training.errors import answer_json
from training.files import read_regular

Messages = Sequence[Mapping[str, str]]
Render = Callable[..., str]

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")
DATE = "strftime_now"
"""The function of templates that returns the current date."""
NO_DATE = {DATE: ""}
"""An argument with which a template that calls the function raises TypeError."""
_SYSTEM, _FIRST, _ANSWER, _SECOND = "system-7f3a", "first-7f3a", "answer-7f3a", "second-7f3a"
_CHECKED = "line one\nline 'two'\n\n  {x} three"
_MOST_BYTES = 16 * 2**20
_MOST_TEXT = 100_000
"""Characters of a conversation's prompt: that of the checked ones has some hundred."""
_TOKENIZER_FILE = "tokenizer_config.json"


@dataclass(frozen=True)
class Turns:
    """`start` stands before a conversation without a system message; `system` around one, None if it must be left out.

    `user` and `assistant` are the texts before and after their messages, `answer` that before the model's answer.
    """

    start: str
    system: tuple[str, str] | None
    user: tuple[str, str]
    assistant: tuple[str, str]
    answer: str

    def joined(self, messages: Messages) -> str:
        """The prompt of a conversation of alternating messages, up to the answer."""
        prompt, rest = self.start, list(messages)
        if rest and rest[0]["role"] == "system":
            content = rest.pop(0)["content"]
            prompt = self.start if self.system is None else self.system[0] + content + self.system[1]
        parts = {"user": self.user, "assistant": self.assistant}
        for message in rest:
            before, after = parts[message["role"]]
            prompt += before + message["content"] + after
        return prompt + self.answer


@dataclass(frozen=True)
class ChatTemplate:
    """The template's text, the tokens that begin and end a text ("" if the tokenizer has none), and its file, if it has one."""

    text: str
    begin: str
    end: str
    file: Path | None


def chat_template_of(folder: Path) -> ChatTemplate | None:
    """The chat template in a folder; None if there is none."""
    values = _json(folder / _TOKENIZER_FILE)
    begin, end = (_content(values.get(name)) for name in ("bos_token", "eos_token"))
    jinja, legacy = (folder / name for name in TEMPLATE_FILES)
    if jinja.is_file():
        return ChatTemplate(read_regular(jinja, _MOST_BYTES).decode(errors="replace"), begin, end, jinja)
    inside = _json(legacy).get("chat_template") or values.get("chat_template")
    if isinstance(inside, list):  # named templates
        named = (one for one in inside if isinstance(one, dict) and one.get("name") == "default")
        inside = next((one.get("template") for one in named), None)
    return ChatTemplate(inside, begin, end, legacy if legacy.is_file() else None) if isinstance(inside, str) else None


def _json(file: Path) -> dict[str, Any]:
    try:
        values = json_files.read(file, _MOST_BYTES)
    except (OSError, ValueError):
        return {}
    return values if isinstance(values, dict) else {}


def _content(token: Any) -> str:
    return str(token.get("content", "")) if isinstance(token, dict) else str(token or "")


def turns_of(template: str, begin: str, end: str, options: Mapping[str, object] | None = None) -> Turns | None:
    """The parts of a template with the tokens `begin` and `end` of the tokenizer, and the template's own options.

    Runs the template. None if it does more than join texts, or writes the current date: checked on conversations of one to three
    turns.
    """

    def render(*messages: Mapping[str, str], asks: bool = True) -> str:
        return _rendered(template, messages, {"bos_token": begin, "eos_token": end, **(options or {})}, asks=asks)

    try:
        turns = _parts(render)
    except Exception:  # a template may raise anything
        return None
    return turns if turns and _is_right(turns, render) else None


def _rendered(template: str, messages: Messages, values: Mapping[str, object], *, asks: bool) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    conversation = [dict(message) for message in messages]
    texts, _ = render_jinja_template(
        conversations=[conversation], chat_template=template, add_generation_prompt=asks, **{**values, **NO_DATE}
    )
    if len(texts[0]) > _MOST_TEXT:
        raise ValueError("the template writes too long a text")
    return str(texts[0])


def _user(content: str) -> dict[str, str]:
    return {"role": "user", "content": content}


def _assistant(content: str) -> dict[str, str]:
    return {"role": "assistant", "content": content}


def _parts(render: Render) -> Turns | None:
    head, user_after = render(_user(_FIRST), asks=False).split(_FIRST)
    answer = render(_user(_FIRST)).split(_FIRST)[1].removeprefix(user_after)
    _, assistant_after = render(_user(_FIRST), _assistant(_ANSWER), asks=False).split(_ANSWER)
    whole = render(_user(_FIRST), _assistant(_ANSWER), _user(_SECOND))
    assistant_before = _between(whole, _FIRST, _ANSWER).removeprefix(user_after)
    user_before = _between(whole, _ANSWER, _SECOND).removeprefix(assistant_after)
    if not head.endswith(user_before):
        return None
    start = head.removesuffix(user_before)
    around = _around_system(render, user_before)
    return Turns(start, around, (user_before, user_after), (assistant_before, assistant_after), answer)


def _around_system(render: Render, user_before: str) -> tuple[str, str] | None:
    """The texts around a system message; None if the template refuses one or writes it into the user's message."""
    try:
        text = render({"role": "system", "content": _SYSTEM}, _user(_FIRST))
    except Exception:
        return None
    if _SYSTEM not in text:
        return None
    before, after = text.split(_SYSTEM)[0], _between(text, _SYSTEM, _FIRST)
    return (before, after.removesuffix(user_before)) if after.endswith(user_before) else None


def _between(text: str, left: str, right: str) -> str:
    return text[text.index(left) + len(left) : text.index(right)]


def _is_right(turns: Turns, render: Render) -> bool:
    talk = [_user(_CHECKED), _assistant("One."), _user("Two?"), _assistant(_CHECKED), _user("Three?")]
    conversations = [talk[:1], talk[:3], talk]
    if turns.system:
        conversations += [[{"role": "system", "content": _CHECKED}, *talk[:count]] for count in (1, 3)]
    return all(turns.joined(messages) == render(*messages) for messages in conversations)


def answered(asked: str) -> dict[str, Any]:
    """The parts of a template as JSON, null if it has none; `asked` has the arguments of `turns_of` as JSON."""
    turns = turns_of(*json.loads(asked))
    return {"turns": asdict(turns) if turns else None}


if __name__ == "__main__":
    answer_json(answered)
