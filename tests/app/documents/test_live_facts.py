"""The facts at the top of a run's page."""

import time

import pytest

from app.documents.live.reader import facts
from worker.store.tables import Run, Status


@pytest.mark.parametrize("status", list(Status))
def test_only_a_running_run_has_an_expected_end(status: Status) -> None:
    run = Run(config={}, owner="", status=status, step=5, total_steps=20, seconds_per_step=60.0)
    until, now = facts(run, queue=None, speed=None)["until"], time.time()
    assert (until is not None) == (status is Status.RUNNING)
    assert until is None or until == pytest.approx(now + 15 * 60, abs=60)


def test_a_run_that_trains_on_rewards_shows_its_reward_in_place_of_its_loss() -> None:
    sft, grpo = (
        Run(config={"task": task}, owner="", status=Status.RUNNING, final_loss=loss)
        for task, loss in (("sft", 0.25), ("grpo", -0.75))
    )
    shown = [facts(run, queue=None, speed=None) for run in (sft, grpo)]
    assert [(one["loss_label"], one["loss"]) for one in shown] == [("Loss", "0.2500"), ("Reward", "0.7500")]
