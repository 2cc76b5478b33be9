"""Adds the verdicts on the cases of a suite to the answers of its evaluation."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from training.files import write_whole
from training.scoring.cases import CaseVerdict, verdict
from training.scoring.request import BEFORE, COLUMNS, RECORDS_FILE, EvaluationRequest
from worker.evaluations.scoring import Progress, Record, compute, read_records

VERDICT, BEFORE_SCORES = "verdict", "before_scores"


def add_verdicts(
    folder: Path, request: EvaluationRequest, progress: Progress, stopped: Callable[[], bool]
) -> dict[str, int]:
    """Scores the answers of the model before training, adds the verdict to each record in answers.jsonl, and counts them."""
    records = read_records(folder)
    before: list[Record] = [record | {"answer": record[BEFORE], "scores": {}, COLUMNS: {}} for record in records]
    if request.rewards:
        compute(folder, request, before, progress, stopped)
    for case, record, other in zip(request.prompts, records, before, strict=True):
        scores = record["scores"].get(case.expect), other["scores"].get(case.expect)
        record[BEFORE_SCORES] = other["scores"]
        record[VERDICT] = verdict(case, record["answer"], record[BEFORE], scores).value
    write_whole(folder / RECORDS_FILE, "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records))
    counts = Counter(record[VERDICT] for record in records)
    return {kind.value: counts[kind.value] for kind in CaseVerdict}
