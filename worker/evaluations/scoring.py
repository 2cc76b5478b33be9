"""Scores of an evaluation's answers by rewards and by a judge, and the means of all."""

import json
import math
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from training.errors import Problem, UserError
from training.files import write_whole
from training.scoring.intervals import mean_interval
from training.scoring.request import COLUMNS, RECORDS_FILE, EvaluationRequest, Judge
from training.scoring.reward_process import RewardProcess, Trouble, together
from training.scoring.rewards import JUDGE, Sample
from worker.settings import get_settings

if TYPE_CHECKING:
    import httpx

_BATCH = 256
_ROWS_FIX = "Give rows to which it applies, or leave it out."

Record = dict[str, Any]
Progress = Callable[[str, int, int], None]
_ROUTE = "/chat/completions"
_CONNECT_SECONDS, _READ_SECONDS = 10.0, 120.0
_LONGEST_REPLY = 200_000  # bytes
_AT_ONCE = 4
_TRIES, _WAIT_SECONDS = 4, 1.0
_BUSY = (408, 429, 500, 502, 503, 504)
_NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
_SCORE = re.compile(r"""["']?score["']?\s*[:=]\s*(-?\d+(?:\.\d+)?)""", re.IGNORECASE)
_FIX = "Check the judge's address and model, and LATHE_JUDGE_KEY."


class MetricFailed(UserError):  # noqa: N818
    """A metric has no score for any row."""


def read_records(folder: Path) -> list[Record]:
    """The answers of an evaluation, a record for each row."""
    with (folder / RECORDS_FILE).open(encoding="utf-8") as stream:
        return [json.loads(line) for line in stream]


def add_scores(
    folder: Path, request: EvaluationRequest, progress: Progress, stopped: Callable[[], bool]
) -> dict[str, Trouble]:
    """Adds the scores of rewards and of the judge to answers.jsonl, and returns what went wrong with each reward.

    Raises:
        MetricFailed: a reward has no score for any row; names the first row and line.
        JudgeError: the judge did not answer, or no reply had a score.
    """
    rewards = request.rewards
    if not rewards and JUDGE not in request.metrics:
        return {}
    records = read_records(folder)
    troubles = _compute(folder, request, records, progress, stopped) if rewards else {}
    if not stopped():
        _check(request, records, troubles)
    if JUDGE in request.metrics:
        _judge(request, records, progress, stopped)
    lines = (json.dumps(record, ensure_ascii=False) + "\n" for record in records)
    write_whole(folder / RECORDS_FILE, "".join(lines))
    return troubles


def summarize(records: Sequence[Record], metrics: Sequence[str]) -> dict[str, Any]:
    """The number of rows, and of each metric its mean with the 95% interval and the rows that have a score."""
    found: dict[str, Any] = {}
    for metric in metrics:
        scores = [record["scores"][metric] for record in records if record["scores"].get(metric) is not None]
        if scores:
            low, high = mean_interval(scores)
            found[metric] = {"mean": fmean(scores), "low": low, "high": high, "rows": len(scores)}
    return {"rows": len(records), "metrics": found}


def _compute(
    folder: Path, request: EvaluationRequest, records: Sequence[Record], progress: Progress, stopped: Callable[[], bool]
) -> dict[str, Trouble]:
    """Adds the scores of the rewards among the metrics, and returns what went wrong with each."""
    troubles: dict[str, Trouble] = {}
    samples = [
        Sample(record["prompt"], record["answer"], record["expected"], record.pop(COLUMNS, {}), record["row"])
        for record in records
    ]
    with RewardProcess(request.rewards, request.own, folder) as process:
        for start in range(0, len(records), _BATCH):
            if stopped():
                return troubles
            progress("scoring", start, len(records))
            scores = process.score(samples[start : start + _BATCH])
            for name, values in scores.values.items():
                for record, value in zip(records[start:], values, strict=False):
                    record["scores"][name] = value
            troubles = together(troubles, scores.troubles)
    return troubles


def _check(request: EvaluationRequest, records: Sequence[Record], troubles: Mapping[str, Trouble]) -> None:
    """Raises MetricFailed: a metric has no score for any row."""
    for name, trouble in troubles.items():
        if all(record["scores"].get(name) is None for record in records):
            own = any(reward.own for reward in request.rewards if reward.name == name)
            fix = (
                "Correct the function; it takes prompt, answer and expected and returns a number." if own else _ROWS_FIX
            )
            raise MetricFailed("metrics", name, f"{trouble.sentence}.", fix)


def _judge(
    request: EvaluationRequest, records: Sequence[Record], progress: Progress, stopped: Callable[[], bool]
) -> None:
    judge = request.judge
    assert judge is not None
    progress("judging", 0, len(records))
    found = judged(judge, records, lambda done, total: progress("judging", done, total), stopped)
    for record, judgement in zip(records, found, strict=False):
        record["scores"][JUDGE], record["judge"] = judgement.score, judgement.reply
    if not stopped() and all(record["scores"][JUDGE] is None for record in records):
        message = f"gave no reply with a number from 0 to {judge.scale:g}; the first reply was: {records[0]['judge'][:200]!r}."
        raise JudgeError("judge_prompt", judge.model, message, 'Ask in the prompt for JSON: {"score": NUMBER}.')


class JudgeError(UserError):
    """The judge did not answer, or refused."""


@dataclass(frozen=True)
class Judgement:
    """A judge's reply to an answer; `score` (0 to 1) is None if it has no number from 0 to the scale."""

    score: float | None
    reply: str


def judge_problem(url: str, *, trusted: bool) -> Problem | None:
    """Why a user may not use the judge at this address; None if they may.

    `trusted` users may use any address. Others may use those of LATHE_JUDGE_URLS, so that they cannot reach services of the
    server's network.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query or parts.fragment:
        return Problem(
            "judge_url", url, "is not the address of an API.", "Give http://HOST:PORT/v1 or https://HOST/v1."
        )
    if trusted or _listed(url):
        return None
    fix = "Ask who runs the server to add it to LATHE_JUDGE_URLS."
    return Problem("judge_url", url, "is not a judge of this server.", fix)


def judged(
    judge: Judge, records: Sequence[dict[str, Any]], progress: Callable[[int, int], None], stopped: Callable[[], bool]
) -> Iterator[Judgement]:
    """Yields the judgement of each record (prompt, answer, expected), in their order.

    Raises:
        JudgeError: the judge did not answer, or refused; names the row.
    """
    import httpx

    timeout = httpx.Timeout(_CONNECT_SECONDS, read=_READ_SECONDS)
    with httpx.Client(timeout=timeout, headers=_headers(judge.url)) as client, ThreadPoolExecutor(_AT_ONCE) as pool:
        done = 0
        for start in range(0, len(records), _AT_ONCE * 4):
            if stopped():
                return
            part = records[start : start + _AT_ONCE * 4]
            for judgement in pool.map(lambda record: _ask(client, judge, record), part):
                done += 1
                progress(done, len(records))
                yield judgement


def score_in(reply: str, scale: float) -> float | None:
    """The score in a reply, from 0 to 1: after "score", else its last number. None if there is none from 0 to `scale`."""
    named = _SCORE.findall(reply)
    numbers = named or _NUMBER.findall(reply)
    value = float(numbers[-1]) if numbers else math.nan
    return value / scale if 0 <= value <= scale else None


def _ask(client: "httpx.Client", judge: Judge, record: dict[str, Any]) -> Judgement:
    import httpx

    content = judge.filled(record["prompt"], record["answer"], record["expected"])
    body = {"model": judge.model, "temperature": 0, "messages": [{"role": "user", "content": content}]}
    for attempt in range(_TRIES):
        try:
            status, text = _post(client, _address(judge.url), body)
        except httpx.TransportError as error:
            status, text = 0, str(error) or type(error).__name__
        if status == 200:
            return _judgement(text, judge, record)
        if status and status not in _BUSY:
            break
        if attempt + 1 < _TRIES:
            time.sleep(_WAIT_SECONDS * 2**attempt)
    reason = f"answered with status {status}: {text[:200]}" if status else f"did not answer: {text}"
    raise JudgeError("judge_url", judge.url, f"row {record['row'] + 1:,}: {reason}.", _FIX)


def _post(client: "httpx.Client", address: str, body: dict[str, Any]) -> tuple[int, str]:
    """Status and text of the answer; redirects are not followed, and a longer answer is cut."""
    with closing(client.send(client.build_request("POST", address, json=body), stream=True)) as answer:
        received = b""
        for chunk in answer.iter_bytes():
            received += chunk
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


def _address(url: str) -> str:
    address = url.rstrip("/")
    return address if address.endswith(_ROUTE) else address + _ROUTE


def _headers(url: str) -> dict[str, str]:
    """The key, for judges of LATHE_JUDGE_URLS; without that variable, for every judge, which only the server's user can name."""
    settings = get_settings()
    if settings.judge_key is None or (settings.judge_urls.strip() and not _listed(url)):
        return {}
    return {"Authorization": f"Bearer {settings.judge_key.get_secret_value()}"}


def _listed(url: str) -> bool:
    """True if the address is, or begins with, one of LATHE_JUDGE_URLS."""
    known = [_address(part.strip()) for part in get_settings().judge_urls.split(",") if part.strip()]
    return _address(url) in known
