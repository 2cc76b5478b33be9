"""Suites: what training has gained and cost, as checks with their reasons, and a verdict on each case. Read-only."""

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Literal

from pydantic import Field
from sqlmodel import Session

from app.documents import Document
from app.documents.results.evaluated_rows import records
from app.documents.results.evaluations import EvaluationAnswer, compared, document, hidden_data
from app.format.numbers import plural
from training.errors import NotFound
from training.scoring import generalization
from training.scoring.cases import CaseVerdict
from training.scoring.generalization import gap
from training.scoring.paired import Verdict, in_words, signed
from training.scoring.request import BASE, BASELINE, BEFORE, TRAINING_ROWS
from training.scoring.score_card import TRAINED_TEMPLATE
from worker.evaluations.cases import BEFORE_SCORES, VERDICT
from worker.store import evaluations, runs
from worker.store.tables import Evaluation, Status

State = Literal["passed", "failed", "skipped"]
PASSED: State = "passed"
FAILED: State = "failed"
SKIPPED: State = "skipped"


class SuiteNotFound(NotFound):
    """No suite has this id."""


class Check(Document):
    """A check of a suite: gain, few_shot, overfitting, leak, template, forgetting or text; what it found, and why it failed."""

    name: str
    state: State
    text: str


class CaseAnswer(Document):
    """A case with the answers after and before training; `score` and `before_score` are those of its reward."""

    number: int
    prompt: str
    expect: str
    expected: str
    threshold: float
    answer: str
    before: str
    score: float | None
    before_score: float | None
    verdict: CaseVerdict


class SuiteAnswer(Document):
    """A suite: its checks, its cases, and the evaluations that it consists of, each with its score card."""

    id: str
    run_id: str
    created_at: float
    status: Status
    passed: bool | None = Field(description="null until all evaluations have finished")
    checks: list[Check]
    cases: list[CaseAnswer]
    verdicts: dict[str, int] = Field(description="number of cases that are kept, fixed, broken or failing")
    evaluations: list[EvaluationAnswer] = Field(
        description="of the trained model, the base, the base with shots, the cases, and of both models on training rows"
    )


class SuiteList(Document):
    """The suites of a run, newest first."""

    suites: list[SuiteAnswer]


def listing(session: Session, run_id: str) -> SuiteList:
    """The suites of a run. Raises RunNotFound if there is no such run."""
    run = runs.get(session=session, run_id=run_id)
    return SuiteList(suites=list(of_items(session, evaluations.of_run(session=session, run_id=run.id)).values()))


def newest(session: Session, run_ids: Sequence[str]) -> dict[str, SuiteAnswer]:
    """The newest ended suite of each run that has one."""
    found: dict[str, SuiteAnswer] = {}
    for suite in of_items(session, evaluations.of_runs(session=session, run_ids=run_ids)).values():
        if suite.passed is not None:
            found.setdefault(suite.run_id, suite)
    return found


def in_short(suite: SuiteAnswer) -> str:
    """For example "passed", or "failed: leak, 2 broken"."""
    wrong = [kind for kind in CaseVerdict if not kind.passed and suite.verdicts[kind]]
    cases = [f"{suite.verdicts[kind]:,} {kind.value}" for kind in wrong]
    causes = [check.name for check in suite.checks if check.state == FAILED] + cases
    return f"failed: {', '.join(causes)}" if causes else "passed"


def show(session: Session, suite_id: str) -> SuiteAnswer:
    """One suite. Raises SuiteNotFound if there is none."""
    items = evaluations.of_suite(session=session, suite_id=suite_id)
    if not items:
        raise SuiteNotFound("suite", suite_id, "does not exist.", "`lathe suites RUN` lists those of a run.")
    return of_items(session, items)[suite_id]


def of_items(session: Session, items: Sequence[Evaluation]) -> dict[str, SuiteAnswer]:
    """The suites that evaluations belong to, newest first, by id, without the hashes of data that the user does not see."""
    hidden = hidden_data(session, items)
    groups: dict[str, list[Evaluation]] = {}
    for item in sorted((one for one in items if one.asked.suite), key=lambda one: one.id, reverse=True):
        groups.setdefault(item.asked.suite, []).append(item)
    return {name: _suite(name, group[::-1], hidden) for name, group in groups.items()}


def _suite(suite_id: str, items: list[Evaluation], hidden: Collection[str]) -> SuiteAnswer:
    status = _status(items)
    finished = status is Status.FINISHED
    checks = list(_checks(items)) if finished else []
    cases = [case for item in items if item.asked.has_cases for case in _cases(item)] if finished else []
    met = all(check.state != FAILED for check in checks) and all(case.verdict.passed for case in cases)
    return SuiteAnswer(
        id=suite_id,
        run_id=items[0].run_id,
        created_at=items[0].created_at,
        status=status,
        passed=met if finished else None,
        checks=checks,
        cases=cases,
        verdicts={kind.value: sum(case.verdict is kind for case in cases) for kind in CaseVerdict},
        evaluations=[document(item, hidden=hidden) for item in items],
    )


def _status(items: Sequence[Evaluation]) -> Status:
    """The worst of the ended ones, once all have ended. How those on training rows ended does not count: without them one check is
    skipped."""
    found = [item.status for item in items if not (item.asked.of_training and item.status.ended)]
    order = (Status.RUNNING, Status.QUEUED, Status.FAILED, Status.STOPPED)
    return next((status for status in order if status in found), Status.FINISHED)


def _checks(items: Sequence[Evaluation]) -> Iterator[Check]:
    """What the evaluations show, each with its cause."""
    rows = [item for item in items if not item.asked.has_cases and not item.asked.of_training]
    trained = next((item for item in rows if item.asked.source != BASE), None)
    if trained is not None:
        bases = [item for item in rows if item.asked.source == BASE]
        for other in bases:
            yield _gain(trained, other)
        leak = _leak(trained)
        if of_training := [item for item in items if item.asked.of_training]:
            yield _overfitting(of_training, (bases[0], trained), leak.state == FAILED)
        yield leak
    for item in items:
        if item.asked.has_cases:
            yield _template(item)
            yield from _forgetting(item)


def _gain(trained: Evaluation, base: Evaluation) -> Check:
    """Better than the base; of the base with shots, not worse."""
    shots = base.asked.shots
    name, other = ("few_shot", f"the base with {shots} training rows in its prompt") if shots else ("gain", "the base")
    metric = trained.asked.metrics[0]
    found = compared(base, trained)
    if (shown := found.scores.get(metric)) is None:
        reasons = "; ".join(f"{one.field} differs ({one.first} and {one.second})" for one in found.differs)
        return Check(
            name=name, state=FAILED, text=f"{metric} cannot be compared with {other}: {reasons or 'no common rows'}."
        )
    wanted = (Verdict.BETTER, Verdict.NONE) if shots else (Verdict.BETTER,)
    text = f"{metric} against {other}: {in_words(shown, share=_is_share(trained, metric))}."
    return Check(name=name, state=PASSED if shown.verdict in wanted else FAILED, text=text)


def _overfitting(of_training: Sequence[Evaluation], held_out: tuple[Evaluation, Evaluation], leaked: bool) -> Check:
    """It has not gained much more on rows that it was trained on than on held-out rows."""
    name = "overfitting"
    if failed := next((item for item in of_training if item.status is not Status.FINISHED), None):
        error = failed.error or {"message": f"The evaluation of training rows is {failed.status.value}."}
        reason = " ".join(str(error[key]) for key in ("message", "fix") if error.get(key))
        return Check(name=name, state=SKIPPED, text=reason)
    trained, base = sorted(of_training, key=lambda item: item.asked.source == BASE)
    metric, most = trained.asked.metrics[0], trained.asked.most_gap or float("inf")
    sides = [compared(*pair).scores.get(metric) for pair in ((base, trained), held_out)]
    if not (sides[0] and sides[1]):
        return Check(name=name, state=SKIPPED, text=f"{metric} cannot be compared between training and held-out rows.")
    if not all(_is_share(item, metric) for item in (*of_training, *held_out)):
        return Check(name=name, state=SKIPPED, text=f"{metric} has no bounds, so that no gap can be called large.")
    found = gap(sides[0], sides[1], int((trained.summary or {}).get(TRAINING_ROWS) or sides[0].rows))
    text = f"{metric} against the base: {generalization.in_words(found)}; limit {signed(most)} points."
    if found.low > most:
        cause = "Over-trained: train on more rows, for fewer epochs or with a lower learning_rate, or use an earlier checkpoint."
        return Check(name=name, state=FAILED, text=f"{text} {cause}")
    if leaked:
        reason = "Held-out rows are training rows, so that a gap between them would not be seen."
        return Check(name=name, state=SKIPPED, text=reason)
    return Check(name=name, state=PASSED, text=text)


def _is_share(item: Evaluation, metric: str) -> bool:
    value = (item.summary or {}).get("metrics", {}).get(metric) or {"low": 0, "high": 1}
    return bool(value["low"] >= 0 and value["high"] <= 1) and not value.get("unbounded")


def _leak(item: Evaluation) -> Check:
    """No held-out row is a training row."""
    found: dict[str, Any] = item.overlap or {"problem": "The overlap was not counted."}
    if "problem" in found:
        return Check(name="leak", state=SKIPPED, text=str(found["problem"]))
    copies, rows = max(found["equal"], found["same_prompt"]), found["rows"]
    if not copies:
        return Check(name="leak", state=PASSED, text=f"None of {rows:,} held-out rows is a training row.")
    if item.asked.exclude_leaked_rows:
        return Check(
            name="leak", state=PASSED, text=f"{copies:,} of {rows:,} held-out rows are training rows, and left out."
        )
    examples = ", ".join(str(number) for number in found["examples"][:5])
    text = f"Leaked: {copies:,} of {rows:,} held-out rows are training rows, or have the prompt of one (such as row {examples}). "
    return Check(
        name="leak", state=FAILED, text=f"{text}Leave them out (exclude_leaked_rows), or evaluate on other rows."
    )


def _template(item: Evaluation) -> Check:
    """The saved chat template is that of training."""
    prompt = ((item.summary or {}).get("card") or {}).get("prompt") or {}
    if trained := prompt.get(TRAINED_TEMPLATE):
        text = f"Changed template: the result is saved with the template {prompt.get('template_sha256')}, and was trained with "
        text += f"{trained} (SHA-256). Restore chat_template.jinja in its folder."
        return Check(name="template", state=FAILED, text=text)
    return Check(
        name="template", state=PASSED, text="The result is saved with the chat template that it was trained with."
    )


def _forgetting(item: Evaluation) -> Iterator[Check]:
    found = (item.summary or {}).get("forgetting")
    if not found:
        yield Check(name="forgetting", state=SKIPPED, text="Forgetting was not measured.")
        return
    lower = "Over-trained: lower learning_rate or epochs, or evaluate an earlier checkpoint."
    most_kl, most_loss = item.asked.most_kl or float("inf"), item.asked.most_loss or float("inf")
    if found["kl"] is None:
        yield Check(
            name="forgetting", state=SKIPPED, text="No case expects the answer of the base, so that no KL is measured."
        )
    else:
        prompts = plural(found["prompts"], "prompt", "prompts")
        text = f"KL divergence from the base, on {prompts} outside the data: {found['kl']:.3g} nats per token "
        yield _limited("forgetting", f"{text}(limit {most_kl:g}).", found["kl"] <= most_kl, lower)
    before, after = found["loss_before"], found["loss_after"]
    text = f"Loss on a plain text: {before:.3g} before and {after:.3g} after training, nats per token (limit +{most_loss:g})."
    yield _limited("text", text, after - before <= most_loss, lower)


def _limited(name: str, text: str, holds: bool, cause: str) -> Check:
    return Check(name=name, state=PASSED if holds else FAILED, text=text if holds else f"{text} {cause}")


def _cases(item: Evaluation) -> Iterator[CaseAnswer]:
    for case, record in zip(item.asked.prompts, records(item), strict=False):
        yield CaseAnswer(
            number=int(record["row"]) + 1,
            prompt=case.user,
            expect=case.expect,
            expected=case.expected if case.expect != BASELINE else str(record[BEFORE]),
            threshold=case.threshold,
            answer=str(record["answer"]),
            before=str(record[BEFORE]),
            score=record["scores"].get(case.expect),
            before_score=record[BEFORE_SCORES].get(case.expect),
            verdict=CaseVerdict(record[VERDICT]),
        )
