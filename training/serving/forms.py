"""The forms of requests: those of OpenAI's API, with vLLM's sampling, chat_template_kwargs and return_token_ids."""

import tomllib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, field_validator, model_validator

from training.errors import UserError, written


class RequestError(UserError):
    """A request that cannot be answered; `status` is its HTTP status."""

    def __init__(self, status: int, field: str, value: Any, message: str, fix: str) -> None:
        super().__init__(field, value, message, fix)
        self.status = status


_PARAMETERS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("parameters.toml").read_text(encoding="utf-8"))
WITHOUT_EFFECT: frozenset[str] = frozenset(_PARAMETERS["without_effect"])
_NEUTRAL: dict[str, list[Any]] = _PARAMETERS["neutral"]


def supported(values: Mapping[str, Any], fields: Collection[str]) -> dict[str, Any]:
    """The parameters among `fields` that are not null; the others must change nothing. Raises RequestError if a parameter would
    change the answer, or is unknown."""
    for name, value in values.items():
        if name not in fields and not _changes_nothing(name, value, values):
            raise _refusal(name, value)
    return {name: value for name, value in values.items() if name in fields and value is not None}


def _changes_nothing(name: str, value: Any, values: Mapping[str, Any]) -> bool:
    if value is None or name in WITHOUT_EFFECT:
        return True
    if name == "tool_choice" and value == "none":
        return not values.get("tools")
    return name in _NEUTRAL and value in _NEUTRAL[name]


def _refusal(name: str, value: Any) -> RequestError:
    neutral = _NEUTRAL.get(name)
    instead = f"Leave it out, or send {written(neutral[0])}." if neutral else "Leave it out."
    message = "is not supported." if neutral else "is not a parameter of this request."
    return RequestError(400, name, value, message, _PARAMETERS["instead"].get(name, instead))


_Stop = Annotated[str, StringConstraints(min_length=1, max_length=200)]
_MAX_STOPS = 16
MOST_PROMPTS = 128


class StreamOptions(BaseModel):
    """What a stream contains besides the answer. The length of chunks is not obfuscated."""

    model_config = ConfigDict(extra="forbid")

    include_usage: bool | None = False
    include_obfuscation: bool | None = None


class Form(BaseModel):
    """A JSON object of parameters, of which none is ignored."""

    model_config = ConfigDict(protected_namespaces=())

    model: str

    @model_validator(mode="before")
    @classmethod
    def _none_is_ignored(cls, values: Any) -> Any:
        return supported(values, cls.model_fields) if isinstance(values, dict) else values


class Request(Form):
    """What both kinds of completion share.

    A temperature of 0 is greedy, a `top_k` below 1 no limit. No end token and no stop string ends the first `min_tokens` tokens;
    with `ignore_eos`, no end token ends the answer.
    """

    stream: bool = False
    stream_options: StreamOptions | None = None
    temperature: float = Field(1.0, ge=0, le=10)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float = Field(1.0, gt=0, le=10)
    max_tokens: int | None = Field(None, ge=1)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    stop: list[_Stop] = Field(default_factory=list, max_length=_MAX_STOPS)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    return_token_ids: bool = False

    @field_validator("stop", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @property
    def longest(self) -> int | None:
        """The most tokens of an answer; None for as many as the context has room for."""
        return self.max_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        """How many alternatives of each token to report; None for no log probabilities."""
        raise NotImplementedError

    @property
    def usage_in_stream(self) -> bool:
        """True if the last chunk of a stream reports the numbers of tokens."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatRequest(Request):
    """POST /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=20)

    @field_validator("messages")
    @classmethod
    def _text_only(cls, value: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [_with_text(message) for message in value]

    @model_validator(mode="after")
    def _logprobs_are_wanted(self) -> Self:
        if self.top_logprobs and not self.logprobs:
            raise RequestError(400, "top_logprobs", self.top_logprobs, "needs logprobs.", "Send logprobs: true.")
        return self

    @property
    def longest(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def wanted_logprobs(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


class CompletionRequest(Request):
    """POST /v1/completions."""

    prompt: list[str | list[int]]
    logprobs: int | None = Field(None, ge=0, le=20)

    @field_validator("prompt", mode="plain")
    @classmethod
    def _prompts(cls, value: Any) -> list[str | list[int]]:
        """One prompt or several, each a text or its tokens."""
        prompts = [value] if _is_prompt(value) else value
        if not isinstance(prompts, list) or not all(map(_is_prompt, prompts)):
            raise ValueError("must be a text, a list of tokens, or a list of texts or of such lists")
        if not 1 <= len(prompts) <= MOST_PROMPTS:
            raise ValueError(f"one request has 1 to {MOST_PROMPTS} prompts")
        return prompts

    @property
    def wanted_logprobs(self) -> int | None:
        return self.logprobs


class TokenizeRequest(Form):
    """POST /tokenize, as vLLM's: the tokens of a prompt or of rendered messages."""

    prompt: str | None = None
    messages: list[dict[str, Any]] | None = Field(None, min_length=1)
    tools: list[dict[str, Any]] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool = False

    @field_validator("messages")
    @classmethod
    def _text_only(cls, value: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
        return [_with_text(message) for message in value] if value else value


class LoadRequest(BaseModel):
    """POST /load: the adapter in a folder, or without one another name for the base model; `arguments` of its chat template."""

    model_config = ConfigDict(extra="forbid")

    name: str
    folder: Path | None = None
    arguments: dict[str, Any] = Field(default_factory=dict)


def _is_prompt(value: Any) -> bool:
    is_tokens = isinstance(value, list) and bool(value) and all(type(token) is int for token in value)
    return isinstance(value, str) or is_tokens


def _with_text(message: dict[str, Any]) -> dict[str, Any]:
    """The message with its content as text, which OpenAI's clients may send in parts, and without its other keys that are null:
    a template could take them for given."""
    message = {key: value for key, value in message.items() if value is not None}
    if not isinstance(message.get("role"), str):
        raise ValueError("every message needs a role")
    content = message.get("content")
    if isinstance(content, Sequence) and not isinstance(content, str):
        if not all(isinstance(part, dict) and part.get("type") == "text" for part in content):
            raise ValueError("only text can be answered, no images or audio")
        return message | {"content": "".join(str(part.get("text", "")) for part in content)}
    if content is not None and not isinstance(content, str):
        raise ValueError("the content of a message must be text")
    return message if content is not None else message | {"content": ""}
