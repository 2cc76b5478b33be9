"""A sweep with real supervisors and a stand-in for the training program."""

import json

import pytest
from supervised import get, supervise

from training.config.run_config import RunConfig
from worker.store import database, runs, sweeps
from worker.store.runs import SweepTrial
from worker.store.tables import Attempt, Run, Status
from worker.store.tables.sweep_values import NO_PLAN

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home")]
BEHAVIOUR = {"steps": 6}


@pytest.fixture
def pair() -> list[str]:
    """The ids of the two runs of a sweep that decides at step 2."""
    spec = {"config": {}, "space": {"lora_r": [1, 2]}, "method": "halving", "min_steps": 2, "reduction_factor": 2}
    with database.write() as session:
        plan = NO_PLAN.model_dump() | {"metric": "loss"}
        sweep = sweeps.create(session=session, name="s", owner="local", spec=spec, plan=plan)
        configs = [RunConfig(model=json.dumps(BEHAVIOUR), data="none", lora_r=rank) for rank in (1, 2)]
        places = [SweepTrial(sweep.id, trial, 2) for trial in (1, 2)]
        return [
            runs.create(session=session, config=config, dataset_id=None, trial=place).id
            for config, place in zip(configs, places, strict=True)
        ]


def test_runs_pause_at_the_rung_and_the_last_supervisor_lets_the_best_continue(pair: list[str]) -> None:
    first, second = pair
    with supervise(first) as it:
        paused = it.wait()
        assert (paused.status, paused.held, paused.step) == (Status.QUEUED, True, 2)
        assert "Paused. Saved at step 2. Its sweep decides whether it continues." in it.told()
    with supervise(second) as it:
        assert it.wait().status is Status.STOPPED  # the same loss: the first continues
        assert "Stopped early at step 2." in it.told()
    assert (get(first).held, get(first).pause_at) == (False, 4)
    with database.write() as session:
        session.get_one(Run, first).pause_at = None
    with supervise(first) as it:
        assert it.wait().status is Status.FINISHED
    with database.read() as session:
        assert [session.get_one(Attempt, (first, number)).outcome for number in (1, 2)] == ["paused", "finished"]


def test_a_pause_that_was_not_stored_is_found_in_the_folder_of_the_run(pair: list[str]) -> None:
    with supervise(pair[0]) as it:
        it.wait()
    with database.write() as session:  # as if the supervisor had been killed before it stored the pause
        session.get_one(Run, pair[0]).held = False
    with supervise(pair[0]) as it:
        paused = it.wait()
    assert (paused.status, paused.held, paused.attempt, paused.step) == (Status.QUEUED, True, 2, 2)
    assert not any(event.kind == "resumed" for event in it.events())
