"""Verdicts on the cases of a suite: whether the answer meets the case's expectation, and whether that of the model before training
did."""

from enum import StrEnum

from training.scoring.request import BASELINE, Prompt


class CaseVerdict(StrEnum):
    """What training did to a case."""

    KEPT = "kept"
    FIXED = "fixed"
    BROKEN = "broken"
    FAILING = "failing"

    @property
    def passed(self) -> bool:
        """True if the answer after training meets the expectation."""
        return self in (CaseVerdict.KEPT, CaseVerdict.FIXED)


def verdict(case: Prompt, answer: str, baseline: str, scores: tuple[float | None, float | None]) -> CaseVerdict:
    """The verdict on a case by the answers after and before training, and by their scores of its metric in this order; a score of
    None does not meet an expectation."""
    if case.expect == BASELINE:
        return CaseVerdict.KEPT if answer.strip() == baseline.strip() else CaseVerdict.BROKEN
    after, before = (score is not None and score >= case.threshold for score in scores)
    if after:
        return CaseVerdict.KEPT if before else CaseVerdict.FIXED
    return CaseVerdict.BROKEN if before else CaseVerdict.FAILING
