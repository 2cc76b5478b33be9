"""Answers in the form of OpenAI's API, whole or as the chunks of a stream."""

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from training.serving.forms import ChatRequest
from training.serving.jobs import End, Job, Token


@dataclass
class ServedAnswer:
    """The answer to a request while its tokens arrive: a choice for each of its jobs, which have one model and one request."""

    jobs: Sequence[Job]
    created: int = field(default_factory=lambda: int(time.time()))

    def __post_init__(self) -> None:
        self.job = self.jobs[0]
        self.tokens: list[list[Token]] = [[] for _ in self.jobs]
        self.ends: dict[int, End] = {}
        self.is_chat = isinstance(self.job.request, ChatRequest)
        self.id = f"{'chatcmpl' if self.is_chat else 'cmpl'}-{uuid.uuid4().hex}"

    def add(self, index: int, item: Token | End) -> None:
        """Takes what the job of an index emitted."""
        if isinstance(item, End):
            self.ends[index] = item
        else:
            self.tokens[index].append(item)

    def cancel(self) -> None:
        """Ends its jobs: nobody reads what they would still emit."""
        for job in self.jobs:
            job.cancelled.set()

    @property
    def is_whole(self) -> bool:
        """True if every choice has ended."""
        return len(self.ends) == len(self.jobs)

    @property
    def waited(self) -> float:
        """Seconds for which it waited for other requests."""
        return min(job.waited for job in self.jobs)

    @property
    def usage(self) -> dict[str, int]:
        """The numbers of tokens; those of the answer include its end token."""
        prompt, answered = sum(len(job.prompt) for job in self.jobs), sum(map(len, self.tokens))
        return {"prompt_tokens": prompt, "completion_tokens": answered, "total_tokens": prompt + answered}

    def whole(self) -> dict[str, Any]:
        """The answer to a request without `stream`, when it is whole."""
        answer = self._head("chat.completion" if self.is_chat else "text_completion") | {"usage": self.usage}
        choices = [self._whole_choice(job, answer) for job in self.jobs]
        return answer | {"choices": choices}

    def _whole_choice(self, job: Job, answer: dict[str, Any]) -> dict[str, Any]:
        tokens, end = self.tokens[job.index], self.ends[job.index]
        text = "".join(token.text for token in tokens) + end.text
        said: dict[str, Any] = {"message": {"role": "assistant", "content": text}} if self.is_chat else {"text": text}
        choice = {"index": job.index, **said, "logprobs": self._logprobs(tokens), "finish_reason": end.reason}
        if job.request.return_token_ids:
            choice["token_ids"] = [token.id for token in tokens]
            self._add_prompt(job, answer, choice)
        return choice

    def first(self) -> dict[str, Any]:
        """The first chunk of a stream: role, and the prompts' tokens if the request wants them."""
        chunk = self._head(self._chunk_kind)
        choices = [self._choice(job, "", None, role="assistant") for job in self.jobs]
        if self.job.request.return_token_ids:
            for job, choice in zip(self.jobs, choices, strict=True):
                self._add_prompt(job, chunk, choice)
        return chunk | {"choices": choices}

    def chunk(self, job: Job, token: Token) -> dict[str, Any]:
        """The chunk of a token; its text may be empty, within a character or a possible stop string."""
        choice = self._choice(job, token.text, None) | {"logprobs": self._logprobs([token])}
        if job.request.return_token_ids:
            choice["token_ids"] = [token.id]
        return self._head(self._chunk_kind) | {"choices": [choice]}

    def last(self, job: Job, end: End) -> list[dict[str, Any]]:
        """The last chunks: the reason of a choice's end; after those of all, the numbers of tokens if the request wants them."""
        chunks = [self._head(self._chunk_kind) | {"choices": [self._choice(job, end.text, end.reason)]}]
        if self.is_whole and job.request.usage_in_stream:
            chunks.append(self._head(self._chunk_kind) | {"choices": [], "usage": self.usage})
        return chunks

    @property
    def _chunk_kind(self) -> str:
        return "chat.completion.chunk" if self.is_chat else "text_completion"

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.job.served.name}

    def _choice(self, job: Job, text: str, reason: str | None, **delta: str) -> dict[str, Any]:
        if not self.is_chat:
            return {"index": job.index, "text": text, "logprobs": None, "finish_reason": reason}
        content = {"content": text} if text or delta else {}
        return {"index": job.index, "delta": {**delta, **content}, "logprobs": None, "finish_reason": reason}

    def _add_prompt(self, job: Job, answer: dict[str, Any], choice: dict[str, Any]) -> None:
        """As vLLM places it: beside the choices of a chat, in the choice of a completion."""
        (answer if self.is_chat else choice)["prompt_token_ids"] = job.prompt

    def _logprobs(self, tokens: list[Token]) -> dict[str, Any] | None:
        if self.job.request.wanted_logprobs is None:
            return None
        if self.is_chat:
            return {"content": [self._entry(one.id, one.logprob) | self._alternatives(one) for one in tokens]}
        return {
            "tokens": [self._key(one.id) for one in tokens],
            "token_logprobs": [one.logprob for one in tokens],
            "top_logprobs": [{self._key(other): value for other, value in one.alternatives} for one in tokens],
            "text_offset": [one.offset for one in tokens],
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
