"""Counts right and wrong diagnoses, and their macro F1."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.diagnosis.judged_logs import Judged
from worker.diagnosis.diagnosis import Diagnosis, diagnose

_NONE = ("unknown", "no_failure")


@dataclass(frozen=True)
class Answer:
    """A judged log and its diagnosis."""

    log: Judged
    diagnosis: Diagnosis

    @property
    def right(self) -> bool:
        return self.diagnosis.cause in self.log.accept

    @property
    def unnamed(self) -> bool:
        return self.diagnosis.cause in _NONE


def answers(logs: Sequence[Judged]) -> list[Answer]:
    """The diagnosis of each log."""
    return [Answer(log, diagnose(log.text)) for log in logs]


def macro_f1(judged: Sequence[Answer]) -> float:
    """The mean over the causes of 2 TP / (2 TP + FP + FN), over all failures; a right answer counts for the cause it names."""
    hits, missed, wrong = Counter[str](), Counter[str](), Counter[str]()
    for answer in judged:
        if answer.right:
            hits[answer.diagnosis.cause] += 1
            continue
        missed[answer.log.accept[0]] += 1
        wrong[answer.diagnosis.cause] += not answer.unnamed
    causes = {one for counted in (hits, missed, wrong) for one in counted if counted[one]}
    return sum(2 * hits[one] / (2 * hits[one] + missed[one] + wrong[one]) for one in causes) / max(len(causes), 1)


def report(title: str, judged: Sequence[Answer]) -> str:
    """The numbers of one set of logs, and a line for each that is not right."""
    failures = [answer for answer in judged if not answer.log.healthy]
    healthy = [answer for answer in judged if answer.log.healthy]
    right = sum(answer.right for answer in failures)
    unnamed = sum(not answer.right and answer.unnamed for answer in failures)
    numbers = f"{right} of {len(failures)} failures right, {len(failures) - right - unnamed} wrong, {unnamed} unnamed"
    numbers += f", macro F1 {macro_f1(failures):.3f}; {sum(answer.right for answer in healthy)} of {len(healthy)} healthy right"
    missed = [
        f"  {answer.log.name}: {answer.diagnosis.cause} ({answer.diagnosis.confidence}), expected {' or '.join(answer.log.accept)}"
        for answer in judged
        if not answer.right
    ]
    return "\n".join([f"{title}: {numbers}", *missed])
