"""Answers in the form of OpenAI's API, whole or as the chunks of a stream."""

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

from training.serving.forms import ChatRequest
from training.serving.generation import End, Job, Token


@dataclass
class Answer:
    """One answer while its tokens arrive."""

    job: Job
    tokens: list[Token] = field(default_factory=list)
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.is_chat = isinstance(self.job.request, ChatRequest)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens; those of the answer include its end token."""
        prompt, answered = len(self.job.prompt), len(self.tokens)
        return {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}

    def whole(self, end: End) -> dict[str, Any]:
        """The answer to a request without `stream`."""
        text = "".join(token.text for token in self.tokens) + end.text
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice = {"index": 0, **said, "logprobs": self._logprobs(self.tokens), "finish_reason": end.reason}
        answer = self._head("chat.completion" if self.is_chat else "text_completion") | {"usage": self.usage}
        if self.job.request.return_token_ids:
            choice["token_ids"] = [token.id for token in self.tokens]
            self._add_prompt(answer, choice)
        return answer | {"choices": [choice]}

    def first(self) -> dict[str, Any]:
        """The first chunk of a stream: role, and the prompt's tokens if the request wants them."""
        choice: dict[str, Any] = self._choice("", None, role="assistant")
        chunk = self._head(self._chunk_kind)
        if self.job.request.return_token_ids:
            self._add_prompt(chunk, choice)
        return chunk | {"choices": [choice]}

    def chunk(self, token: Token) -> dict[str, Any]:
        """The chunk of a token; its text may be empty, within a character or a possible stop string."""
        choice = self._choice(token.text, None) | {"logprobs": self._logprobs([token])}
        if self.job.request.return_token_ids:
            choice["token_ids"] = [token.id]
        return self._head(self._chunk_kind) | {"choices": [choice]}

    def last(self, end: End) -> list[dict[str, Any]]:
        """The last chunks: the reason of the end, then the numbers of tokens if the request wants them."""
        chunks = [self._head(self._chunk_kind) | {"choices": [self._choice(end.text, end.reason)]}]
        if self.job.request.usage_in_stream:
            chunks.append(self._head(self._chunk_kind) | {"choices": [], "usage": self.usage})
        return chunks

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.job.served.name}

    def _choice(self, text: str, reason: str | None, **delta: str) -> dict[str, Any]:
        if not self.is_chat:
            return {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
        content = {"content": text} if text or delta else {}
        return {"index": 0, "delta": {**delta, **content}, "logprobs": None, "finish_reason": reason}

    def _add_prompt(self, answer: dict[str, Any], choice: dict[str, Any]) -> None:
        """As vLLM places it: beside the choices of a chat, in the choice of a completion."""
        (answer if self.is_chat else choice)["prompt_token_ids"] = self.job.prompt

    def _logprobs(self, tokens: list[Token]) -> dict[str, Any] | None:
        if self.job.request.wanted_logprobs is None:
            return None
        if self.is_chat:
            return {"content": [self._entry(one.id, one.logprob) | self._alternatives(one) for one in tokens]}
        return {
            "tokens": [self._key(one.id) for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [{self._key(other): value for other, value in one.alternatives} for one in tokens],
        }

    def _alternatives(self, token: Token) -> dict[str, Any]:
        return {"top_logprobs": [self._entry(other, value) for other, value in token.alternatives]}

    def _entry(self, token: int, logprob: float | None) -> dict[str, Any]:
        content = self.job.served.token_bytes.of(token)
        return {"token": content.decode(errors="replace"), "logprob": logprob, "bytes": list(content)}

    def _key(self, token: int) -> str:
        """A token's text; as OpenAI writes it, if it is only a part of a character: bytes:\\xc3."""
        content = self.job.served.token_bytes.of(token)
        try:
            return content.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in content)
