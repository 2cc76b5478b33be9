"""Diagnoses a failed run from its log: the cause, the evidence, the rank that failed first, and the fix.

The log may come from any training program. The launcher's own traceback is never the cause. Follow-up errors of other ranks
(a lost connection, a collective that timed out) count only if nothing else is found.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import islice
from typing import Any

from training.model_info.dimensions import Dimensions
from worker.diagnosis.cause import Cause, Detail, Kind, Known, Sign
from worker.diagnosis.causes import CAUSES
from worker.diagnosis.log_file import Excerpt
from worker.diagnosis.log_text import Line, Log
from worker.diagnosis.roles import Role
from worker.diagnosis.tracebacks import Traceback
from worker.redaction import redact_all

UNKNOWN = "unknown"
_MOST_EVIDENCE = 8
_PER_SIGN = 200  # matches of one sign; a warning may be printed a million times
_ERROR_WORDS = ("error", "exception", "fatal", "abort", "failed", "killed", "cannot", "not found", "denied")


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis.

    `confidence`, 0 to 1, is that of the sign (0.9 and more: a message of this cause only; about 0.7: other causes print it too;
    0.5: a symptom). It is lower if training continued or another cause was found too, and 0 for an unknown cause. `changes` are
    settings (RunConfig) that fix the run; `inferred` are values computed from sizes.
    """

    cause: str
    title: str
    confidence: float
    explanation: str
    evidence: tuple[Line, ...] = ()
    first_failed_rank: int | None = None
    fix: tuple[str, ...] = ()
    changes: dict[str, Any] = field(default_factory=dict)
    inferred: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """As a JSON value; `evidence_lines` are the line numbers of `evidence`. Secrets are redacted."""
        values = asdict(self) | {
            "evidence": [line.shown.strip() for line in self.evidence],
            "evidence_lines": [line.number for line in self.evidence],
            "fix": list(self.fix),
        }
        redacted: dict[str, Any] = redact_all(values)
        return redacted


@dataclass(frozen=True)
class _Match:
    """A sign found in the log, at the index `place` of its lines."""

    cause: Cause
    sign: Sign
    kind: Kind
    place: int
    words: dict[str, str]
    role: Role
    continued: bool
    """True if training continued after it."""
    elsewhere: bool
    """True if another rank printed it than the one that failed first, according to the launcher."""

    @property
    def order(self) -> tuple[bool, int, bool, int, int, float]:
        return self.continued, self.kind, self.elsewhere, self.role, self.place, -self.sign.confidence


def diagnose(
    log: str | Sequence[Excerpt],
    *,
    dimensions: Dimensions | None = None,
    micro_batch: int | None = None,
    config: dict[str, Any] | None = None,
) -> Diagnosis:
    """Diagnoses a log: its text, or excerpts of it.

    `dimensions` of the model, `micro_batch` (rows in one forward pass) and `config` (the run's settings) are optional: they help to
    identify a tensor by its size.
    """
    read = Log([Excerpt(1, log)] if isinstance(log, str) else log)
    if not read.text.strip():
        return Diagnosis(UNKNOWN, "The log is empty.", 0.0, "It contains no text.", fix=(_ASK,))
    matches = sorted((found for cause in CAUSES for found in _matches(cause, read)), key=lambda match: match.order)
    if not matches:
        return _unknown(read)
    best = matches[0]
    if (best.continued and not read.failed) or (best.kind is Kind.SYMPTOM and not _is_failure(best, read)):
        return _unknown(read)
    return _known(read, matches, Known(dimensions, micro_batch, config or {}))


def _is_failure(symptom: _Match, log: Log) -> bool:
    """True if the symptom alone explains why the run failed: it is in the first error, or there is no traceback."""
    first = _first_error(log)
    if first and not log.training_continued_after(first.last):
        return first.first <= symptom.place <= first.end
    return log.failed or (symptom.sign.lasting and log.ends_not_finite)


def _matches(cause: Cause, log: Log) -> list[_Match]:
    return [
        _match(cause, one, log, place, match)
        for one in cause.signs
        for place, match in _occurrences(one.pattern, log)
        if one.inside is None or log.raised_inside(place, one.inside)
    ]


def _occurrences(pattern: re.Pattern[str], log: Log) -> Iterator[tuple[int, re.Match[str]]]:
    """Where a pattern matches outside of code: in a line, or in an exception's message that a console has wrapped."""
    found = set()
    for match in islice(pattern.finditer(log.text), _PER_SIGN):
        place = log.place(max(match.start(), match.end() - 1))  # of several lines the last, which is the error
        found.add(place)
        if log.roles[place] is not Role.CODE:
            yield place, match
    for place, message in log.wrapped_messages:
        if place not in found and (in_message := pattern.search(message)):
            yield place, in_message


def _match(cause: Cause, one: Sign, log: Log, place: int, match: re.Match[str]) -> _Match:
    role, rank = log.roles[place], log.lines[place].rank
    words = {name: word for name, word in match.groupdict().items() if word}
    kind = Kind.SYMPTOM if role is Role.NOTICE and not one.notice else one.kind
    survived = kind is not Kind.SYMPTOM and log.training_continued_after(place)
    elsewhere = None not in (log.root_rank, rank) and rank != log.root_rank
    return _Match(cause, one, kind, place, words, role, survived, elsewhere)


def _known(log: Log, matches: list[_Match], known: Known) -> Diagnosis:
    best = matches[0]
    cause = best.cause
    own = [match for match in matches if match.cause is cause]
    detail = cause.analyze(log, best.place, known) if cause.analyze else Detail()
    words = {name: word for match in reversed(own) for name, word in match.words.items()}
    more = detail.explanation or _filled(cause.explanation, words)
    changes = cause.changes if detail.changes is None else detail.changes
    ranks = (detail.rank, log.lines[best.place].rank, log.root_rank, *(log.lines[match.place].rank for match in own))
    rank = next((rank for rank in ranks if rank is not None), None)
    return Diagnosis(
        cause=cause.name,
        title=cause.title,
        confidence=_confidence(best, matches),
        explanation=f"{cause.title} {more}".strip(),
        evidence=_evidence(log, own, detail.evidence),
        first_failed_rank=rank,
        fix=(*detail.fix, *cause.fix),
        changes={name: value for name, value in changes.items() if known.config.get(name) != value},
        inferred=detail.inferred,
    )


def _filled(template: str, words: dict[str, str]) -> str:
    """The sentence with the groups that the signs matched; empty if one is missing."""
    groups = defaultdict(str, words)
    filled = template.format_map(groups)
    return filled if groups.keys() == words.keys() else ""


def _confidence(best: _Match, matches: list[_Match]) -> float:
    alike = [match for match in matches if match.order[:2] == best.order[:2]]
    sure = max(match.sign.confidence for match in alike if match.cause is best.cause)
    rivals = any(match.cause is not best.cause for match in alike) and best.kind is Kind.ERROR
    return round(sure * (0.6 if best.continued else 1.0) * (0.9 if rivals else 1.0), 2)


def _evidence(log: Log, own: list[_Match], more: tuple[Line, ...]) -> tuple[Line, ...]:
    """The lines that show the cause, in the log's order; of equal lines the first."""
    seen: dict[str, Line] = {}
    for line in [log.lines[own[0].place], *more, *(log.lines[match.place] for match in own)]:
        seen.setdefault(line.shown.strip(), line)
    return tuple(sorted(list(seen.values())[:_MOST_EVIDENCE], key=lambda line: line.number))


def _first_error(log: Log) -> Traceback | None:
    """The first traceback of the rank that failed first; of any rank if that has none."""
    fatal = [one for one in log.tracebacks if not log.training_continued_after(one.last)] or log.tracebacks
    of_root = [one for one in fatal if log.lines[one.first].rank == log.root_rank]
    return next(iter(of_root or fatal), None)


_ASK = (
    "Provide more of the log: the output of every rank, from start to end (torchrun --tee 3, or the run's output.log)."
)


def _unknown(log: Log) -> Diagnosis:
    error = _first_error(log)
    if error:
        lines = [log.lines[error.last]]
        frame = error.frames[-1] if error.frames else None
        found = f"The first error is: {lines[0].text.strip()}"
        found += f" (in {frame.function}, {frame.file.rsplit('/', 1)[-1]})" if frame else ""
    else:
        lines = [line for line in log.lines if any(word in line.text.lower() for word in _ERROR_WORDS)][:1]
        found = (
            f"The first line that mentions an error is: {lines[0].text.strip()}"
            if lines
            else "No line mentions an error."
        )
    rank = lines[0].rank if lines else None
    return Diagnosis(
        UNKNOWN,
        "No known cause matches this log.",
        0.0,
        f"No known cause matches this log. {found}",
        evidence=tuple(lines),
        first_failed_rank=log.root_rank if rank is None else rank,
        fix=(_ASK,)
        if not error
        else ("Read the error and the frames above it in the log; start with the last frame in your own code.",),
    )
