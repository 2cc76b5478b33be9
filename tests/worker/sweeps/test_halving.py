"""Successive halving: the decisions, and how they reach the runs of a sweep."""

import math

import pytest
from played_run import PlayedRun

from training.config.run_config import RunConfig
from training.run_folder.events import Metrics
from worker.store import claims, runs, sweeps
from worker.store import database as db
from worker.store.runs import SweepTrial
from worker.store.tables import Run, Status
from worker.store.tables.sweep_values import NO_PLAN
from worker.sweeps.advance import advance, advance_all
from worker.sweeps.ranking import Contender, Decision, RankState, decide
from worker.sweeps.results import results

R = RankState.RUNNING, RankState.PAUSED, RankState.ENDED, RankState.WAITING, RankState.HELD
RUNNING, PAUSED, ENDED, WAITING, HELD = R


def at(number, value, *, rung=10, state=PAUSED):
    return Contender(number, state, rung, {rung: value})


def test_of_a_complete_rung_the_best_continue_and_the_others_stop():
    losses = {1: 3.0, 2: 1.0, 3: 2.0, 4: 5.0, 5: 4.0, 6: 6.0}
    decision = decide([at(number, loss) for number, loss in losses.items()], 3)
    assert decision == Decision({2: 30, 3: 30}, (1, 5, 4, 6))


def test_a_metric_to_maximize_and_ties_by_number():
    assert decide([at(1, 0.5), at(2, 0.9), at(3, 0.9)], 3, maximize=True).promoted == {2: 30}


def test_nothing_is_decided_while_a_configuration_waits_for_a_device():
    assert decide([*(at(n, n) for n in range(1, 7)), Contender(7, WAITING, 10)], 3) == Decision()


def test_with_several_devices_the_best_so_far_continue_while_others_still_train():
    running = Contender(4, RUNNING, 10)
    assert decide([at(1, 3.0), at(2, 1.0), at(3, 2.0), running], 3) == Decision({2: 30})
    assert decide([at(1, 3.0), at(2, 1.0), running], 3) == Decision()  # a third of two is none


def test_one_that_comes_late_still_continues_if_it_is_among_the_best():
    early = Contender(1, RUNNING, 30, {10: 3.0})
    others = [at(number, value) for number, value in ((2, 1.0), (3, 2.0), (4, 4.0), (5, 5.0), (6, 6.0))]
    assert decide([early, *others], 3).promoted == {2: 30, 3: 30}


def test_missing_and_not_finite_values_rank_last():
    found = decide([at(1, math.nan), at(2, None), at(3, 9.0)], 3)
    assert (found.promoted, set(found.stopped)) == ({3: 30}, {1, 2})


def test_a_failed_configuration_does_not_block_a_rung_and_one_always_continues():
    assert decide([at(1, 1.0), Contender(2, ENDED, 10), Contender(3, ENDED, 10)], 4) == Decision({1: 40})


def test_one_held_by_a_user_stops_nobody():
    found = decide([at(1, 1.0), at(2, 2.0), at(3, 3.0), Contender(4, HELD, 10)], 3)
    assert found == Decision({1: 30})


class Played:
    """A sweep whose runs are played through the worker's functions."""

    def __init__(self, count, seeds=1, **spec):
        values = {
            "config": {"model": "models/tiny", "data": "rows.jsonl"},
            "space": {"lora_r": list(range(1, count + 1))},
        }
        values |= {"method": "halving", "min_steps": 10, "seeds": seeds} | spec
        with db.write() as session:
            plan = NO_PLAN.model_dump() | {"metric": "eval_loss"}
            self.id = sweeps.create(session=session, name="s", owner="local", spec=values, plan=plan).id
            for trial in range(1, count + 1):
                for seed in range(seeds):
                    config = RunConfig(model="models/tiny", data="rows.jsonl", lora_r=trial, seed=seed)
                    place = SweepTrial(self.id, trial, 10)
                    runs.create(session=session, config=config, dataset_id=None, trial=place)

    @property
    def runs(self) -> list[Run]:
        with db.read() as session:
            found = sweeps.runs_of(session=session, sweep_ids=[self.id])
        return sorted(found, key=lambda run: (run.trial, run.config["seed"]))

    def train(self, run, step, value):
        """Trains a run to a step, where it pauses, or ends after step 90."""
        played = PlayedRun.of(run.id)
        played._bytes = run.event_offset
        played.claim().report(Metrics(step=step, values={"eval_loss": value}))
        if step == 90:
            played.end(summary={"eval_loss": value})
            return
        with db.write() as session:
            session.get_one(Run, run.id).total_steps = 90
            assert claims.requeue(session=session, run_id=run.id, attempt=played.attempt, reason="", outcome="paused")

    def states(self):
        return [(run.status, run.held, run.pause_at) for run in self.runs]


def test_a_sweep_trains_all_runs_to_the_first_rung_and_the_best_to_the_end(database):
    sweep = Played(9)
    for number, run in enumerate(sweep.runs):
        assert advance(sweep.id) == []
        sweep.train(run, 10, 9.0 - number)
    assert set(advance(sweep.id)) == {run.id for run in sweep.runs[6:]}
    assert sweep.states()[5:7] == [(Status.STOPPED, False, 10), (Status.QUEUED, False, 30)]
    assert advance(sweep.id) == advance_all() == []  # deciding again changes nothing
    for run in sweep.runs[6:]:
        sweep.train(run, 30, 2.0)
    assert advance_all() == [sweep.runs[6].id]  # of equal values the first
    sweep.train(sweep.runs[6], 90, 1.5)
    with db.read() as session:
        found = results(session, sweeps.get(session=session, sweep_id=sweep.id))
    assert found.ended
    assert found.best.changes == {"lora_r": 7}
    assert found.saved_steps == (8, 6 * 80 + 2 * 60, 9 * 90 - 90 + 90)


def test_a_configuration_with_several_seeds_continues_as_a_whole_by_its_mean(home):
    sweep = Played(2, seeds=2, reduction_factor=2)
    for run, value in zip(sweep.runs, (1.0, 9.0, 4.0, 4.0), strict=True):
        assert advance(sweep.id) == []
        sweep.train(run, 10, value)
    assert set(advance(sweep.id)) == {run.id for run in sweep.runs[2:]}
    assert [status for status, _, _ in sweep.states()] == [Status.STOPPED] * 2 + [Status.QUEUED] * 2


def test_a_run_that_was_stopped_early_trains_to_its_end_after_resume(home):
    sweep = Played(2, reduction_factor=2)
    for run, value in zip(sweep.runs, (1.0, 2.0), strict=True):
        sweep.train(run, 10, value)
    advance(sweep.id)
    with db.write() as session:
        resumed = runs.resume(session=session, run_id=sweep.runs[1].id)
        assert (resumed.status, resumed.held, resumed.pause_at) == (Status.QUEUED, False, None)


def test_the_results_have_intervals_over_seeds_and_say_when_the_best_is_not_clear(home):
    sweep = Played(2, seeds=3)
    for run, value in zip(sweep.runs, (1.0, 1.2, 1.1, 1.3, 1.15, 1.25), strict=True):
        sweep.train(run, 90, value)
    with db.read() as session:
        found = results(session, sweeps.get(session=session, sweep_id=sweep.id))
    best = found.best.summary
    assert (best.n, best.mean) == (3, pytest.approx(1.1))
    # t with 2 degrees of freedom at 97.5% is 4.303; the standard error of 1.0, 1.1, 1.2 is 0.1 / sqrt(3)
    assert best.high - best.mean == pytest.approx(4.303 * 0.1 / math.sqrt(3), rel=1e-3)
    assert found.lead.mean == pytest.approx((0.3 - 0.05 + 0.15) / 3)
    assert found.lead.includes_zero
