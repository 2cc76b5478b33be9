"""The lines of the plots of several runs."""

import pytest
from played_run import GIB, PlayedRun
from web import client

from training.run_folder.events import Metrics


@pytest.fixture
def two(home):
    """A run on two ranks that reported tokens, and a longer one without them."""
    first = PlayedRun("first").claim("host/cpu")
    first.report(
        *(Metrics(step=n, time=1000.0 + 10 * n, values={"loss": 1 / n, "tokens": 100.0 * n}) for n in range(1, 5)),
        *(Metrics(step=n, rank=rank, values={"host_rss": (n + rank) * GIB}) for n in range(1, 5) for rank in (0, 1)),
    )
    second = PlayedRun("second").claim("host/cuda:0")
    second.report(*(Metrics(step=n, values={"loss": 2 / n}) for n in range(1, 1001)))
    return first.id, second.id


def lines(ids, **query):
    found = client().get("/api/compare/series", params={"runs": ",".join(ids), **query})
    assert found.status_code == 200, found.text
    return found.json()["lines"]


def test_each_run_has_a_line_for_each_metric(two):
    first, second = two
    found = lines(two)
    assert set(found) == {f"{first}/loss", f"{first}/memory", f"{second}/loss"}
    assert found[f"{first}/loss"]["x"] == [1, 2, 3, 4]
    assert found[f"{first}/loss"]["y"] == [1, 0.5, 0.333333, 0.25]


def test_a_run_that_is_rewarded_has_lines_of_its_rewards_in_place_of_its_evaluation_loss(home):
    values = {"loss": 1e-9, "reward": 0.25, "eval_loss": -0.5, "eval_reward": 0.5}
    runs = [
        PlayedRun(task=task).claim(f"{task}/cpu").report(Metrics(step=1, values=values)).id for task in ("grpo", "sft")
    ]
    rewarded, usual = ({key.partition("/")[2] for key in lines([run])} for run in runs)
    assert (rewarded, usual) == ({"loss", "reward", "eval_reward"}, {"loss", "eval_loss"})


def test_memory_is_that_of_the_rank_with_the_most(two):
    sizes = lines(two)[f"{two[0]}/memory"]["y"]
    assert sizes == pytest.approx([n * GIB for n in (2, 3, 4, 5)], rel=1e-5)


def test_lines_lie_on_tokens_and_runs_without_them_have_none(two):
    found = lines(two, axis="tokens")
    assert found[f"{two[0]}/loss"]["x"] == [100, 200, 300, 400]
    assert f"{two[1]}/loss" not in found


def test_a_range_of_the_axis_is_read_in_finer_points(two):
    coarse, fine = lines(two, points=100), lines(two, points=100, start=500, end=550)
    loss = f"{two[1]}/loss"
    assert len(coarse[loss]["x"]) <= 150
    assert fine[loss]["x"] == list(range(500, 551))


def test_what_a_line_has_grown_by_continues_its_points(home):
    run = PlayedRun("grows").claim()
    steps = lambda first, end: (Metrics(step=n, values={"loss": n % 7 + 1.0}) for n in range(first, end))  # noqa: E731
    run.report(*steps(1, 990))
    key = f"{run.id}/loss"
    before = lines([run.id], points=100)[key]
    run.report(*steps(990, 1050))
    first = before["step"] // before["width"] * before["width"]
    more = lines([run.id], first_step=first, width=before["width"])[key]
    whole = lines([run.id], first_step=0, width=before["width"])[key]
    assert more["width"] == before["width"] > 1
    assert len(more["x"]) < 10
    for column in ("x", "y", "low", "high"):
        assert before[column][:-1] + more[column] == whole[column]


def test_more_than_fifty_runs_are_refused(home):
    found = client().get("/api/compare/series", params={"runs": ",".join(f"abcd{n}" for n in range(51))})
    assert found.status_code == 422
    assert found.json()["error"]["fix"] == "Compare at most 50 runs at once."
