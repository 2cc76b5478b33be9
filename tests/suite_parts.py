"""Cases of a suite, and the end of its evaluations: as their supervisors leave them, or carried out by these."""

import json

from patience import eventually

from app.documents.results import suites as document
from training.scoring.intervals import mean_interval
from worker.evaluations import starting, submit, suites
from worker.store import database, evaluations
from worker.store.tables import Status

CASES = [
    {"user": "Hello.", "expect": "baseline"},
    {"user": "Count: 1 2", "expect": "contains", "expected": "3"},
    {"user": "As JSON", "expect": {"reward": "length", "most": 20}},
]
FORGETTING = {"prompts": 1, "tokens": 9, "kl": 0.1, "text_tokens": 100, "loss_before": 3.0, "loss_after": 3.1}
CLEAN = {"rows": 200, "training_rows": 40, "equal": 0, "same_prompt": 0, "shared_words": 0, "words": 13, "examples": []}
RIGHT = {("result", 0): 150, ("base", 0): 60, ("base", 2): 100}
ON_TRAINING_ROWS = {"result": 155, "base": 60}
"""Right answers of 200: to held-out rows by source and shots, and to some of 1,000 training rows."""


def finished(
    item,
    overlap=CLEAN,
    forgetting=FORGETTING,
    prompt=None,
    verdicts=("kept", "fixed", "kept"),
    of_training=ON_TRAINING_ROWS,
):
    """Ends an evaluation of a suite as its supervisor does; one of training rows fails if `of_training` says why."""
    if item.asked.of_training and "message" in of_training:
        return ended(item, status=Status.FAILED, error=of_training)
    folder = submit.folder_of(item)
    folder.mkdir(parents=True)
    card = {"prompt": {"template_sha256": "t"} | (prompt or {}), "engine": "transformers 5"}
    if item.asked.has_cases:
        records = [
            {"row": row, "prompt": "p", "expected": case.expected, "answer": "a", "before": "b", "scores": {case.expect: 1.0},
             "before_scores": {case.expect: 0.0}, "verdict": verdict}
            for row, (case, verdict) in enumerate(zip(item.asked.prompts, verdicts, strict=True))
        ]  # fmt: skip
        summary = {"rows": 3, "metrics": {}, "forgetting": forgetting}
    else:
        own = item.asked.of_training
        right = of_training[item.asked.source] if own else RIGHT[item.asked.source, item.asked.shots]
        scores = [float(row < right) for row in range(200)]
        low, high = mean_interval(scores)
        metric = {"mean": right / 200, "low": low, "high": high, "rows": 200}
        summary = {"rows": 200, "metrics": {"exact_match": metric}} | ({"training_rows": 1000} if own else {})
        records = [
            {"row": row, "prompt": "p", "expected": "x", "answer": "x", "scores": {"exact_match": score}}
            for row, score in enumerate(scores)
        ]
    (folder / "answers.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    return ended(item, overlap, status=Status.FINISHED, summary=summary | {"card": card})


def ended(item, overlap=None, **outcome):
    """Stores the end of an evaluation that a worker has taken."""
    with database.write() as session:
        held = {"session": session, "evaluation_id": item.id}
        assert evaluations.claim(**held, owner="host:1:1", device="host/cpu", lease_seconds=60)
        evaluations.get(**held).overlap = overlap
        evaluations.finish(**held, attempt=1, **outcome)


def carried_out(run, **asked):
    """A suite of a run after the end of its evaluations, which their supervisors have carried out."""
    items = suites.start(run, suites.parse(asked))

    def ended():
        starting.start_waiting()
        with database.read() as session:
            found = evaluations.of_suite(session=session, suite_id=items[0].asked.suite)
            return all(one.status.ended for one in found) and document.of_items(session, found)[items[0].asked.suite]

    return eventually(ended, every=0.2)
