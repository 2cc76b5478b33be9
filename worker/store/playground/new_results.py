"""Queues the prompt sets that every new result is asked, in the transaction that ends the run."""

import json
from hashlib import sha256

from sqlmodel import Session

from training.config.choices import Task
from training.scoring.request import EvaluationRequest
from worker.store import accounts, database, runs, sight
from worker.store.playground import prompt_sets
from worker.store.tables import Evaluation, Run

NAME = "prompt set "
"""The data of such an evaluation is named so, with the set's name."""


def ask(*, session: Session, run: Run) -> None:
    """Queues an evaluation of a finished run for each set whose owner sees the run; none if its model generates no text."""
    if not Task(run.config.get("task", Task.SFT)).generates:
        return
    for found in filter(lambda one: _sees(session, one.owner, run.id), prompt_sets.of_every_result(session=session)):
        digest = sha256(json.dumps(found.prompts, sort_keys=True).encode()).hexdigest()
        asked = {
            "name": NAME + found.name,
            "sha256": digest,
            "prompt_set": found.id,
            "prompts": found.prompts,
            "metrics": (),
        }
        request = EvaluationRequest.model_validate(asked).model_dump(mode="json")
        now = database.now(session=session)
        session.add(Evaluation(id=runs.new_id(now), run_id=run.id, owner=found.owner, request=request, created_at=now))
    session.flush()


def _sees(session: Session, user: str, run_id: str) -> bool:
    """True if the user sees the run, and thus may keep its answers."""
    with sight.seen_by(accounts.view_of(session=session, name=user)), database.read() as own:
        return bool(sight.visible(own, [run_id]))
