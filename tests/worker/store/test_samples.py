"""Samples: each stored once, and found by step, text and rewards, on both databases."""

import pytest

from training.run_folder.events import Planned, SampleDrawn
from worker.store import database as db
from worker.store import history, runs, samples
from worker.store.samples import Wanted
from worker.store.tables import Run, Sample


@pytest.fixture
def run(new_run) -> Run:
    return new_run()


def drawn(step, sample, reward: float | None = 0.0, text="a", **values) -> SampleDrawn:
    usual = {
        "group": sample // 2,
        "row": 6,
        "file": "rows.jsonl",
        "prompt": f"prompt {sample // 2}",
        "expected": "Rome",
    }
    usual |= {"tokens": 3, "ended": True, "scores": {"city": reward}, "advantage": 0.5}
    return SampleDrawn(step=step, sample=sample, reward=reward, text=text, **(usual | values))


def plan(start_step) -> Planned:
    counts = dict.fromkeys(("train_rows", "eval_rows", "skipped_rows", "truncated_rows"), 0)
    parameters = {"trainable_parameters": 1, "total_parameters": 1, "target_modules": []}
    engine = {"engine": "model", "zero_stage": None, "world_size": 1, "precision": "fp32"}
    return Planned(total_steps=9, start_step=start_step, **counts, **parameters, **engine)


def store(run, *events) -> None:
    with db.write() as session:
        samples.add(session=session, run_id=run.id, events=events)


def found(run, offset=0, limit=100, **wanted) -> tuple[list[tuple[int, list[str]]], int]:
    """The step and the texts of each group, and the number of groups."""
    with db.read() as session:
        groups, total = samples.groups(
            session=session, run_id=run.id, wanted=Wanted(**wanted), offset=offset, limit=limit
        )
    return [(group[0].step, [sample.text for sample in group]) for group in groups], total


def steps(run) -> list[int]:
    with db.read() as session:
        return samples.steps(session=session, run_id=run.id)


def test_the_samples_of_a_group_are_together_in_the_order_drawn_the_last_step_first(run):
    store(run, drawn(1, 3, text="d"), drawn(1, 0, text="a"), drawn(1, 1, text="b"), drawn(1, 2, text="c"), drawn(2, 0))
    assert found(run) == ([(2, ["a"]), (1, ["a", "b"]), (1, ["c", "d"])], 3)
    assert found(run, step=1) == ([(1, ["a", "b"]), (1, ["c", "d"])], 2)
    assert found(run, offset=1, limit=1) == ([(1, ["a", "b"])], 3)
    assert steps(run) == [1, 2]


def test_a_sample_is_stored_as_it_was_drawn(run):
    store(run, drawn(1, 5, None, ended=False, scores={"city": None, "json": 0.5}, advantage=-1.5))
    with db.read() as session:
        sample = session.get(Sample, (run.id, 1, 5))
    assert sample and sample.model_dump() == {
        "run_id": run.id, "step": 1, "sample": 5, "group": 2, "row": 6, "file": "rows.jsonl", "prompt": "prompt 2",
        "expected": "Rome", "text": "a", "tokens": 3, "ended": False, "scores": {"city": None, "json": 0.5}, "reward": None,
        "advantage": -1.5,
    }  # fmt: skip


def test_a_resumed_run_has_no_samples_of_steps_that_it_trains_again(run):
    store(run, plan(0), drawn(0, 0), drawn(1, 0), drawn(2, 0), drawn(3, 0, text="old"))
    store(run, plan(2))
    assert steps(run) == [0, 1, 2]
    store(run, drawn(3, 0, text="new"), drawn(3, 0, text="newer"), drawn(0, 0, text="again"))
    assert found(run) == ([(3, ["newer"]), (2, ["a"]), (1, ["a"]), (0, ["again"])], 4)


def test_a_batch_with_both_attempts_keeps_the_later_one(run):
    store(run, drawn(1, 0), drawn(2, 0, text="old"), plan(1), drawn(2, 0, text="new"))
    assert found(run) == ([(2, ["new"]), (1, ["a"])], 2)


def test_the_records_of_an_earlier_attempt_store_no_samples(run):
    with db.write() as session:
        assert not history.apply(session=session, run_id=run.id, attempt=9, events=[drawn(1, 0)], new_offset=100)
    assert steps(run) == []
    with db.write() as session:
        assert history.apply(session=session, run_id=run.id, attempt=0, events=[drawn(1, 0)], new_offset=100)
    assert steps(run) == [1]


@pytest.mark.parametrize("search", ["rOME", "50% of_it", "prompt 1"])
def test_a_group_is_found_by_a_text_in_one_of_its_samples(run, search):
    store(run, drawn(1, 0, expected="Oslo"), drawn(1, 1, expected="Oslo"), drawn(1, 2, text="50% of_it"), drawn(1, 3))
    assert found(run, search=search) == ([(1, ["50% of_it", "a"])], 1)
    assert found(run, search="50%of_it") == ([], 0)


def test_groups_with_equal_rewards_or_with_samples_cut_off_are_found(run):
    rewards = [0.1, 0.1, 0.2, 0.3, None, None]
    store(run, *(drawn(1, number, reward, ended=number != 3) for number, reward in enumerate(rewards)))
    assert found(run, equal=True)[1] == 2 and found(run, equal=True, cut_off=True)[1] == 0
    with db.read() as session:
        ((group,), total) = samples.groups(session=session, run_id=run.id, wanted=Wanted(cut_off=True))
    assert total == 1 and [sample.sample for sample in group] == [2, 3]


def test_groups_are_ordered_by_the_mean_of_a_reward_and_those_without_one_are_last(run):
    rewards = [0.5, 0.5, None, None, 2.0, 0.0, 0.1, 0.1]
    store(
        run,
        *(
            drawn(1, number, reward, text=f"{number}", scores={"a b": -(reward or 0)})
            for number, reward in enumerate(rewards)
        ),
    )
    assert [texts[0] for _, texts in found(run, order="lowest")[0]] == ["6", "0", "4", "2"]
    assert [texts[0] for _, texts in found(run, order="highest")[0]] == ["4", "0", "6", "2"]
    assert [texts[0] for _, texts in found(run, order="lowest", reward="a b")[0]] == ["4", "0", "6", "2"]
    assert found(run, order="lowest", reward="unknown")[1] == 4


def test_characters_that_databases_refuse_are_left_out(run):
    store(run, drawn(1, 0, text="a\0b\ud800"))
    assert found(run) == ([(1, ["ab?"])], 1)


def test_the_samples_of_a_run_are_deleted_with_it(run):
    store(run, drawn(1, 0))
    with db.write() as session:
        runs.request_stop(session=session, run_id=run.id)
        runs.delete(session=session, run_id=run.id)
    assert steps(run) == []
