"""Why a training run failed, from its log: the cause, the lines that show it, the rank that failed first, and what mends it.

Any log will do, of Lathe or not. The launcher's own traceback is never the cause; what the other ranks say because one failed
(a lost connection, a collective that timed out) counts only where nothing else is found.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from worker.cause import Cause, Detail, Kind, Known, Sign
from worker.causes import CAUSES
from worker.log_file import Excerpt
from worker.log_text import Line, Log, Traceback
from worker.logs import redact_all
from worker.model_dimensions import Dimensions

UNKNOWN = "unknown"
_MOST_EVIDENCE = 8
_WARNING = "Warning: "
_PER_SIGN = 200  # matches of one sign that are looked at; a warning may come a million times
_ERROR_WORDS = ("error", "exception", "fatal", "abort", "failed", "killed", "cannot", "not found", "denied")


@dataclass(frozen=True)
class Diagnosis:
    """What became of a log.

    `confidence`, 0 to 1, is the sign's own (0.9 and more: a message that one cause alone prints; about 0.7: one that
    has other causes too; 0.5: a symptom), less where training went on after it or another cause shows as well; 0 for the unknown.
    `changes` are settings of a run (RunConfig) that mend it, `inferred` what was worked out from sizes.
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
        """As a JSON value; `evidence_lines` are the numbers of the lines of `evidence`. Secrets are struck out."""
        values = asdict(self) | {
            "evidence": [line.shown.strip() for line in self.evidence],
            "evidence_lines": [line.number for line in self.evidence],
            "fix": list(self.fix),
        }
        redacted: dict[str, Any] = redact_all(values)
        return redacted


@dataclass(frozen=True)
class _Match:
    """A sign that was found: of which cause, at which place in the log's lines."""

    cause: Cause
    sign: Sign
    kind: Kind
    place: int
    words: dict[str, str]
    went_on: bool
    elsewhere: bool
    """Whether it is another rank's than the one that the launcher saw fail first."""

    @property
    def order(self) -> tuple[bool, int, bool, int, float]:
        return self.went_on, self.kind, self.elsewhere, self.place, -self.sign.confidence


def diagnose(
    log: str | Sequence[Excerpt],
    *,
    shape: Dimensions | None = None,
    micro_batch: int | None = None,
    config: dict[str, Any] | None = None,
) -> Diagnosis:
    """The diagnosis of a log: its text, or parts of it.

    `shape` are the dimensions of the model that trained, `micro_batch` its rows in one forward pass, `config` the settings of
    the run, where they are known: they tell what a tensor of a certain size was.
    """
    read = Log([Excerpt(1, log)] if isinstance(log, str) else log)
    if not read.text.strip():
        return Diagnosis(UNKNOWN, "The log is empty.", 0.0, "There is nothing in it to go by.", fix=(_ASK,))
    matches = sorted((found for cause in CAUSES for found in _matches(cause, read)), key=lambda match: match.order)
    if not matches:
        return _unknown(read)
    best = matches[0]
    first = _first_error(read)
    if best.kind is Kind.SYMPTOM and first and not read.went_on(first.last) and not _within(first, best):
        return _unknown(read)
    return _told(read, matches, Known(shape, micro_batch, config or {}))


def _matches(cause: Cause, log: Log) -> list[_Match]:
    found: list[_Match] = []
    for one in cause.signs:
        for number, match in enumerate(one.pattern.finditer(log.text)):
            if number >= _PER_SIGN:
                break
            place = log.place(match.start())
            words = {name: word for name, word in match.groupdict().items() if word}
            kind = Kind.SYMPTOM if _WARNING in log.lines[place].text else one.kind
            survived = kind is not Kind.SYMPTOM and log.went_on(place)
            rank = log.lines[place].rank
            elsewhere = None not in (log.root_rank, rank) and rank != log.root_rank
            found.append(_Match(cause, one, kind, place, words, survived, elsewhere))
    return found


def _told(log: Log, matches: list[_Match], known: Known) -> Diagnosis:
    best = matches[0]
    cause = best.cause
    own = [match for match in matches if match.cause is cause]
    detail = cause.look(log, best.place, known) if cause.look else Detail()
    words = {name: word for match in reversed(own) for name, word in match.words.items()}
    told = detail.told or _filled(cause.told, words)
    changes = cause.changes if detail.changes is None else detail.changes
    ranks = (detail.rank, log.lines[best.place].rank, log.root_rank, *(log.lines[match.place].rank for match in own))
    rank = next((rank for rank in ranks if rank is not None), None)
    return Diagnosis(
        cause=cause.name,
        title=cause.title,
        confidence=_confidence(best, matches),
        explanation=f"{cause.title} {told}".strip(),
        evidence=_evidence(log, own, detail.evidence),
        first_failed_rank=rank,
        fix=(*detail.fix, *cause.fix),
        changes={name: value for name, value in changes.items() if known.config.get(name) != value},
        inferred=detail.inferred,
    )


def _filled(template: str, words: dict[str, str]) -> str:
    """The sentence with the words that the signs found; none where one of them was not."""
    held = defaultdict(str, words)
    filled = template.format_map(held)
    return filled if held.keys() == words.keys() else ""


def _confidence(best: _Match, matches: list[_Match]) -> float:
    alike = [match for match in matches if match.order[:2] == best.order[:2]]
    sure = max(match.sign.confidence for match in alike if match.cause is best.cause)
    rivals = any(match.cause is not best.cause for match in alike) and best.kind is Kind.ERROR
    return round(sure * (0.6 if best.went_on else 1.0) * (0.9 if rivals else 1.0), 2)


def _evidence(log: Log, own: list[_Match], more: tuple[Line, ...]) -> tuple[Line, ...]:
    """The lines that show the cause, in the log's order; of lines that say the same the first."""
    seen: dict[str, Line] = {}
    for line in [log.lines[own[0].place], *more, *(log.lines[match.place] for match in own)]:
        seen.setdefault(line.shown.strip(), line)
    return tuple(sorted(list(seen.values())[:_MOST_EVIDENCE], key=lambda line: line.number))


def _first_error(log: Log) -> Traceback | None:
    """The first traceback of the rank that the launcher saw fail first; of any rank where it has none."""
    fatal = [one for one in log.tracebacks if not log.went_on(one.last)] or log.tracebacks
    of_root = [one for one in fatal if log.lines[one.first].rank == log.root_rank]
    return next(iter(of_root or fatal), None)


def _within(error: Traceback, match: _Match) -> bool:
    """Whether a symptom is told within the error that ended the run."""
    return error.first <= match.place <= error.last


_ASK = "Give more of the log: what every rank printed, from the start to the end (torchrun --tee 3, or the run's output.log)."


def _unknown(log: Log) -> Diagnosis:
    error = _first_error(log)
    if error:
        lines = [log.lines[error.last]]
        frame = error.frames[-1] if error.frames else None
        told = f"The first error is: {lines[0].text.strip()}"
        told += f" (in {frame.function}, {frame.file.rsplit('/', 1)[-1]})" if frame else ""
    else:
        lines = [line for line in log.lines if any(word in line.text.lower() for word in _ERROR_WORDS)][:1]
        told = (
            f"The first line that speaks of an error is: {lines[0].text.strip()}"
            if lines
            else "No line speaks of an error."
        )
    rank = lines[0].rank if lines else None
    return Diagnosis(
        UNKNOWN,
        "The cause is none of those that Lathe knows.",
        0.0,
        f"The cause is none of those that Lathe knows. {told}",
        evidence=tuple(lines),
        first_failed_rank=log.root_rank if rank is None else rank,
        fix=(_ASK,)
        if not error
        else (
            "Read the error and the frames above it in the log; the last one in your own code is mostly the place to look.",
        ),
    )
