"""A judge: a model behind an OpenAI-compatible API that scores answers."""

import json
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

from training.errors import UserError
from training.rewards.judge_reply import score_in

if TYPE_CHECKING:
    import httpx

_ROUTE = "/chat/completions"
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 120.0
_LONGEST_REPLY = 200_000  # bytes
_AT_ONCE = 4
_TRIES, _WAIT_SECONDS = 4, 1.0
_NOT_TAKEN = (400, 422)  # the status of servers that do not know response_format
_ERRORS = 2  # records in a row without a reply, after which the others are not asked
_BUSY = (408, 429, 500, 502, 503, 504)
_FIX = "Check the judge's address and model, and LATHE_JUDGE_KEY."

KEY_VARIABLE, URLS_VARIABLE = "JUDGE_KEY", "JUDGE_KEY_FOR"
"""Environment of a rank: the key of judges, and the addresses that receive it, in lines."""

_PLACEHOLDERS = ("{prompt}", "{answer}", "{expected}")
DEFAULT_PROMPT = (
    "Rate an answer from 0 (wrong) to 10 (as good as the reference).\n\nTask:\n{prompt}\n\nReference answer:\n{expected}\n\n"
    'Answer to rate:\n{answer}\n\nReply with JSON only: {"score": NUMBER}'
)


class Judge(BaseModel):
    """A model behind an OpenAI-compatible API that scores each answer from 0 to `scale`.

    `url` is the address of the API, such as http://localhost:8000/v1, or of its route /chat/completions.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: str = Field(max_length=2000)
    model: str = Field(min_length=1, max_length=200)
    prompt: str = Field(DEFAULT_PROMPT, max_length=20_000)
    scale: float = Field(10.0, gt=0)

    @field_validator("prompt")
    @classmethod
    def _has_the_answer(cls, value: str) -> str:
        if "{answer}" not in value:
            raise ValueError(f"has no {{answer}}; its placeholders are {', '.join(_PLACEHOLDERS)}")
        return value

    @property
    def compares(self) -> bool:
        """True if its prompt shows the expected answer."""
        return "{expected}" in self.prompt

    def filled(self, prompt: str, answer: str, expected: str) -> str:
        """The prompt for an answer. Text in braces in the answer is not replaced."""
        values = {"{prompt}": prompt, "{answer}": answer, "{expected}": expected}
        return re.sub("|".join(map(re.escape, values)), lambda match: values[match.group()], self.prompt)


class JudgeError(UserError):
    """The judge did not answer, or refused."""


@dataclass(frozen=True)
class Judgement:
    """A judge's reply to an answer; `score` (0 to 1) is None if it has none. `error` says why there is no reply."""

    score: float | None
    reply: str
    error: str = ""


def judged(
    judge: Judge,
    records: Sequence[dict[str, Any]],
    progress: Callable[[int, int], None],
    stopped: Callable[[], bool],
    key: str | None = None,
    seconds: float = math.inf,
) -> Iterator[Judgement]:
    """Yields the judgement of each record (row, prompt, answer, expected), in their order. `key` is sent as a bearer token.

    A record without a reply costs its own judgement only.

    Raises:
        JudgeError: the judge did not answer two records in a row, or none at all, refused them, or took more than `seconds`;
            names the row.
    """
    import httpx

    errors, replied = list[JudgeError](), False

    headers = {"Authorization": f"Bearer {key}"} if key else {}
    deadline = time.monotonic() + seconds
    as_json = Event()  # JSON is asked for, until the server refuses to be asked
    if "json" in judge.prompt.lower():
        as_json.set()
    with httpx.Client(headers=headers) as client, ThreadPoolExecutor(_AT_ONCE) as pool:
        done = 0
        for start in range(0, len(records), _AT_ONCE * 4):
            if stopped():
                return
            part = records[start : start + _AT_ONCE * 4]
            for outcome in pool.map(lambda record: _outcome(client, judge, record, deadline, as_json), part):
                if isinstance(outcome, JudgeError):
                    errors.append(outcome)
                    if len(errors) == _ERRORS:
                        raise outcome
                else:
                    errors, replied = [], True
                done += 1
                progress(done, len(records))
                yield Judgement(None, "", outcome.message) if isinstance(outcome, JudgeError) else outcome
    if errors and not replied:
        raise errors[0]


def key_of_rank(url: str) -> str | None:
    """The key for a judge of the run that this process trains; None without one."""
    return os.environ.get(KEY_VARIABLE) if url in os.environ.get(URLS_VARIABLE, "").splitlines() else None


def _outcome(
    client: "httpx.Client", judge: Judge, record: dict[str, Any], deadline: float, as_json: Event
) -> Judgement | JudgeError:
    try:
        return _ask(client, judge, record, deadline, as_json)
    except JudgeError as error:
        return error


def _ask(client: "httpx.Client", judge: Judge, record: dict[str, Any], deadline: float, as_json: Event) -> Judgement:
    import httpx

    content = judge.filled(record["prompt"], record["answer"], record["expected"])
    body: dict[str, Any] = {"model": judge.model, "temperature": 0}
    body["messages"] = [{"role": "user", "content": content}]
    for attempt in range(_TRIES):
        form = {"response_format": {"type": "json_object"}} if as_json.is_set() else {}
        try:
            status, text = _post(client, address(judge.url), body | form, deadline)
            if form and status in _NOT_TAKEN:
                as_json.clear()
                status, text = _post(client, address(judge.url), body, deadline)
        except httpx.TransportError as error:
            status, text = 0, str(error) or type(error).__name__
        if status == 200:
            return _judgement(text, judge, record)
        if status and status not in _BUSY:
            break
        wait = _WAIT_SECONDS * 2**attempt
        if attempt + 1 < _TRIES and time.monotonic() + wait < deadline:
            time.sleep(wait)
        else:
            break
    reason = f"answered with status {status}: {text[:200]}" if status else f"did not answer: {text}"
    raise JudgeError("judge_url", judge.url, f"row {record['row'] + 1:,}: {reason}.", _FIX)


def _post(client: "httpx.Client", address: str, body: dict[str, Any], deadline: float) -> tuple[int, str]:
    """Status and text of the answer; redirects are not followed, and a longer answer is cut.

    Raises:
        TransportError: there is no answer, or not before the `deadline`.
    """
    import httpx

    left = max(deadline - time.monotonic(), 0.001)
    timeout = httpx.Timeout(min(left, _CONNECT_SECONDS), read=min(left, _READ_SECONDS))
    request = client.build_request("POST", address, json=body, timeout=timeout)
    with closing(client.send(request, stream=True)) as answer:
        received = b""
        for chunk in answer.iter_bytes():
            received += chunk
            if time.monotonic() > deadline:
                raise httpx.ReadTimeout("too slow")
            if len(received) > _LONGEST_REPLY:
                break
        return answer.status_code, received[:_LONGEST_REPLY].decode("utf-8", "replace")


def _judgement(text: str, judge: Judge, record: dict[str, Any]) -> Judgement:
    try:
        reply = str(json.loads(text)["choices"][0]["message"]["content"])
    except (ValueError, KeyError, IndexError, TypeError):
        message = f"row {record['row'] + 1:,}: answered, but not as /v1/chat/completions does: {text[:200]}"
        raise JudgeError("judge_url", judge.url, message, _FIX) from None
    return Judgement(score_in(reply, judge.scale), reply)


def address(url: str) -> str:
    """The address of the route of a judge's API."""
    address = url.rstrip("/")
    return address if address.endswith(_ROUTE) else address + _ROUTE
