"""Diagnoses a failed run from its log: the cause, the evidence, the rank that failed first, and the fix.

The log may come from any training program. The launcher's own traceback is never the cause. Follow-up errors of other ranks
(a lost connection, a collective that timed out) count only if nothing else is found.
"""

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from training.model_info.config_json import Dimensions
from training.redaction import redact_all
from worker.diagnosis.cause import Cause, CauseKind, Detail, Known
from worker.diagnosis.causes import CAUSES
from worker.diagnosis.log_file import Excerpt
from worker.diagnosis.matches import Match, ending, explaining_matches, is_of_root
from worker.diagnosis.parsing.lines import Line
from worker.diagnosis.parsing.tracebacks import Traceback
from worker.diagnosis.timeline import Log

UNKNOWN = "unknown"
NO_FAILURE = "no_failure"
_MOST_EVIDENCE = 8
_MUCH = 0.15  # a sign whose confidence is lower by this much makes another one no less sure
_EARLIER = 0.8  # of the confidence of a sign that was printed before an exception that no sign explains
_ASK = (
    "Provide more of the log: the output of every rank, from start to end (torchrun --tee 3, or the run's output.log)."
)
_READ = "Read the error and the frames above it in the log; start with the last frame in your own code."
GROUP = re.compile(r"\{(\w+)\}")
"""A group of a sign in a sentence."""
_WORD = re.compile(r"[A-Za-z][a-z]{2,}|[A-Z]{3,}")
_SYNTAX = re.compile(r"\(\?P<\w+>|\(\?[:=!<]+|\\[A-Za-z]")
_COMMON = frozenset(
    re.findall(r"\w+", "error runtime value type attribute key import object name has not the and with for was file")
)
_LEAST_WORDS = 2
_LEAST_SHARE = 0.4  # of the error's rare words
_ANSWERING_WORDS, _ANSWERING_SHARE = 4, 0.65
"""Words of a sign's alternative, and the share of them and of the error's words that both have, which make its cause the answer."""
_KIND = re.compile(r"\w+(?:Error|Exception)\b")
_SAYING_LITTLE = frozenset({"RuntimeError", "ValueError", "Exception", "OSError", "AssertionError"})
"""Types of exceptions that a program raises for anything."""
_OF_PYTHON = re.compile(
    r"(?:list|tuple|string|deque) (?:assignment )?index out of range|division by zero|(?:not enough|too many) values to unpack"
    r"|object is not (?:iterable|callable|subscriptable)|has no len\(\)|pop from (?:an )?empty"
)
"""Messages of Python itself, which any code may cause."""
_TYPE = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception))(?:\(\w+\))?: ")


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis.

    `confidence`, 0 to 1, is that of the sign (0.9 and more: a message of this cause only; about 0.7: other causes print it too;
    0.5: a symptom). It is lower if training continued, if another cause was found too, or if the run ended with a later exception
    that is unknown; 0 for `UNKNOWN` and `NO_FAILURE`. `changes` are settings (RunConfig) that fix the run; `inferred` values are
    computed, such as the `nearest` known cause of an unknown error.
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
    matches = explaining_matches(read, CAUSES)
    if matches and _is_unknown_of_root(read, matches[0]):
        matches = [match for match in matches if not match.elsewhere]
    if not matches or (matches[0].continued and not read.timeline.failed):
        return _unnamed(read)
    return _known(read, matches, Known(dimensions, micro_batch, config or {}))


def _is_unknown_of_root(log: Log, best: Match) -> bool:
    """True if the best match only shows that another rank ended, and that rank's own exception is in the log."""
    return best.kind is CauseKind.CONSEQUENCE and best.elsewhere and is_of_root(log)


def _known(log: Log, matches: list[Match], known: Known) -> Diagnosis:
    best = matches[0]
    cause = best.cause
    own = [match for match in matches if match.cause is cause]
    advising = next((match for match in own if match.sign.fix or match.sign.title), best)
    detail = _detail(log, advising, known)
    words = {name: word for match in reversed(own) for name, word in match.words.items()}
    more = detail.explanation or _filled(cause.explanation, words)
    title = detail.title or _filled(advising.sign.title, words) or cause.title
    changes = cause.changes if detail.changes is None else detail.changes
    ranks = (
        detail.rank,
        log.lines[best.index].rank,
        log.timeline.root_rank,
        *(log.lines[match.index].rank for match in own),
    )
    rank = next((rank for rank in ranks if rank is not None), None)
    return Diagnosis(
        cause=cause.name,
        title=title,
        confidence=_confidence(log, best, matches),
        explanation=f"{title} {more}".strip(),
        evidence=_evidence(log, own, detail.evidence),
        first_failed_rank=rank,
        fix=(*detail.fix, *(() if advising.sign.fix or detail.alone else _sentences(cause.fix, words))),
        changes={name: value for name, value in changes.items() if known.config.get(name) != value},
        inferred=detail.inferred,
    )


def _detail(log: Log, match: Match, known: Known) -> Detail:
    """What the sign itself advises, or else what the cause's analysis finds."""
    cause, sign = match.cause, match.sign
    if sign.fix:
        return Detail(fix=_sentences(sign.fix, match.words), changes=sign.changes)
    return cause.analyze(log, match.index, known) if cause.analyze else Detail()


def _filled(template: str, words: dict[str, str]) -> str:
    """The sentence with the groups that the signs matched; empty if one is missing."""
    if any(name not in words for name in GROUP.findall(template)):
        return ""
    return GROUP.sub(lambda group: words[group[1]], template)


def _sentences(fix: Sequence[str], words: dict[str, str]) -> tuple[str, ...]:
    """Those sentences of a fix whose groups the signs matched."""
    return tuple(filled for sentence in fix if (filled := _filled(sentence, words)))


def _confidence(log: Log, best: Match, matches: list[Match]) -> float:
    alike = [match for match in matches if match.order[:2] == best.order[:2] and match.decides is best.decides]
    sure = max(match.sign.confidence for match in alike if match.cause is best.cause)
    others = [match for match in alike if match.cause is not best.cause and match.sign.confidence > sure - _MUCH]
    rivals = bool(others) and best.kind is CauseKind.ERROR
    first = any(
        one.handled and one.contains(best.index) and best.index < one.links[-1].first for one in log.timeline.endings
    )
    return round(
        sure
        * (0.6 if best.continued else 1.0)
        * (0.9 if rivals else 1.0)
        * (0.9 if first else 1.0)
        * (_EARLIER if best.earlier else 1.0),
        2,
    )


def _evidence(log: Log, own: list[Match], more: tuple[Line, ...]) -> tuple[Line, ...]:
    """The lines that show the cause, in the log's order; of equal lines the first."""
    seen: dict[str, Line] = {}
    for line in [log.lines[own[0].index], *more, *(log.lines[match.index] for match in own)]:
        seen.setdefault(line.shown.strip(), line)
    return tuple(sorted(list(seen.values())[:_MOST_EVIDENCE], key=lambda line: line.number))


def _unnamed(log: Log) -> Diagnosis:
    """The diagnosis if no cause matches: an error that is unknown, a line that mentions one, or no failure at all."""
    ended = ending(log)
    error = ended.links[-1] if ended else None
    if error is None and log.timeline.failed:
        error = next(iter(log.tracebacks), None)
    if error:
        return _unknown(log, log.lines[error.last], error, "It ended with" if ended else "The first error is")
    line = log.timeline.first_error or (None if log.timeline.shows_training else log.timeline.first_mention)
    return _unknown(log, line, None, "The first line that mentions an error is") if line else _no_failure(log)


def _no_failure(log: Log) -> Diagnosis:
    last = next(line for line in reversed(log.lines) if line.text.strip())
    title = "This log shows no failure."
    explanation = f"{title} No line mentions an error that ended a run. Its last line is: {last.text.strip()}"
    return Diagnosis(NO_FAILURE, title, 0.0, explanation, fix=(_ASK,))


def _unknown(log: Log, line: Line, error: Traceback | None, lead: str) -> Diagnosis:
    frame = error.frames[-1] if error and error.frames else None
    where = f" (in {', '.join(filter(None, (frame.function, frame.file.rsplit('/', 1)[-1])))})" if frame else ""
    if alike := _alike(line.text):
        return _like(log, line, alike, f"{lead}: {line.text.strip()}{where}")
    like = _nearest(line.text)
    near = f" The nearest known cause is {like.name}: {like.title}" if like else ""
    return Diagnosis(
        UNKNOWN,
        "No known cause matches this log.",
        0.0,
        f"No known cause matches this log. {lead}: {line.text.strip()}{where}{near}",
        evidence=(line,),
        first_failed_rank=log.timeline.root_rank if line.rank is None else line.rank,
        fix=(_READ,) if error else (_ASK,),
        inferred={"nearest": like.name} if like else {},
    )


def _like(log: Log, line: Line, cause: Cause, error: str) -> Diagnosis:
    """The cause that an error resembles, whose message no sign has in these words."""
    return Diagnosis(
        cause.name,
        cause.title,
        0.5,
        f"No known message matches; this cause has the most similar ones: {cause.title} {error}",
        evidence=(line,),
        first_failed_rank=log.timeline.root_rank if line.rank is None else line.rank,
        fix=(*_sentences(cause.fix, {}), _READ),
        inferred={"nearest": cause.name},
    )


def _alike(error: str) -> Cause | None:
    """The cause with a message of the same type of exception and nearly the same words; None if there is none, or several."""
    found = _TYPE.match(error)
    if found is None or _OF_PYTHON.search(error):
        return None
    words = _split(error[found.end() :])
    causes = {
        cause.name: cause
        for cause, kinds, message in _messages()
        if (not kinds or found[1] in kinds) and len(words & message) >= _ANSWERING_SHARE * max(len(words), len(message))
    }
    return next(iter(causes.values())) if len(causes) == 1 else None


@cache
def _messages() -> tuple[tuple[Cause, frozenset[str], frozenset[str]], ...]:
    """Each alternative of the signs without conditions: its cause, the types of exceptions that it names, and its words."""
    found = []
    for cause in CAUSES:
        for sign in cause.signs:
            if sign.inside or sign.when or sign.kind is not CauseKind.ERROR:
                continue
            for part in sign.pattern.pattern.split("|"):
                kinds = frozenset(_KIND.findall(part))
                words = _split(_KIND.sub(" ", _SYNTAX.sub(" ", part)))
                if len(words) >= _ANSWERING_WORDS:
                    found.append((cause, kinds, frozenset(words)))
    return tuple(found)


def _nearest(error: str) -> Cause | None:
    """The cause whose signs contain most of the error's words, weighted by their rarity; None if none has enough of them."""
    by_cause, rarity = _words()
    words = _split(error) & rarity.keys()
    if len(words) < _LEAST_WORDS or "NoneType" in error or _OF_PYTHON.search(error):  # any value may be None
        return None
    total = sum(rarity[word] for word in words)
    raised = _TYPE.match(error)

    def shared(cause: Cause) -> float:
        common = words & by_cause[cause.name]
        return sum(rarity[word] for word in common) / total if len(common) >= _LEAST_WORDS else 0.0

    fitting = [cause for cause in CAUSES if not raised or _may_raise(cause, raised[1])]
    best = max(fitting, key=shared, default=None)
    return best if best and shared(best) >= _LEAST_SHARE else None


def _may_raise(cause: Cause, kind: str) -> bool:
    """True if a sign of the cause names this type of exception, or none where the type says little."""
    named = [set(_KIND.findall(sign.pattern.pattern)) for sign in cause.signs]
    return any(kind in kinds or (kind in _SAYING_LITTLE and not kinds) for kinds in named)


@cache
def _words() -> tuple[dict[str, set[str]], dict[str, float]]:
    """The words of each cause's signs, and for each word the logarithm of the share of causes without it."""
    by_cause = {
        cause.name: {word for sign in cause.signs for word in _split(_SYNTAX.sub(" ", sign.pattern.pattern))}
        for cause in CAUSES
    }
    counts = Counter(word for words in by_cause.values() for word in words)
    return by_cause, {word: math.log(len(CAUSES) / count) for word, count in counts.items()}


def _split(text: str) -> set[str]:
    return {word.lower() for word in _WORD.findall(text)} - _COMMON
