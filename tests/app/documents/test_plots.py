"""What the plots of a run draw, as JSON."""

import gzip
import json
import math

import pytest
from played_run import GIB, PlayedRun

from app.documents.live import plots as documents
from app.documents.live.panels import panels
from app.documents.live.plots import View, rounded
from training.run_folder.events import CheckpointSaved, Metrics, OutOfMemory
from worker.store import database as db
from worker.store import runs
from worker.store.tables import Run, Status


def drawn(run, *view):
    return json.loads(gzip.decompress(documents.packed(run.id, View(*view))))


def measured(steps, every=1, **values):
    """Metrics at `steps` steps, a second apart, with 100 tokens and a hundredth of an epoch each."""
    return [
        Metrics(
            step=step,
            time=1000.0 + step,
            values={"loss": 4.0 - step / steps, "tokens": 100.0 * step, "epoch": step / 100, **values},
        )
        for step in range(every, steps + 1, every)
    ]


@pytest.fixture
def run(database):
    return PlayedRun().claim()


def started(run, at=1000.0, **values):
    with db.write() as session:
        row = session.get(Run, run.id)
        for name, value in {"started_at": at, **values}.items():
            setattr(row, name, value)
        session.add(row)
    return run


def test_a_run_without_metrics_has_no_panels(run):
    assert (drawn(run)["panels"], drawn(run)["lines"]) == ([], {})


def test_a_run_that_ended_before_its_first_step_has_no_panels(run):
    run.report(Metrics(step=0, values={"reward": 0.0, "cut_off": 1.0}))
    assert len(drawn(run)["panels"]) == 2
    run.end(Status.FAILED)
    assert (drawn(run)["panels"], drawn(run)["lines"]) == ([], {})


def test_a_long_run_is_drawn_in_points_of_one_width(run):
    run.report(*measured(3000, grad_norm=1.0))
    document = drawn(run)
    assert document["width"] == 8
    for key in ("loss", "grad_norm"):
        assert [step // 8 for step in document["lines"][key]["x"]] == list(range(376))


def test_a_zoom_is_drawn_finer(run):
    run.report(*measured(3000))
    zoomed = drawn(run, "step", 1000.2, 1300.7)
    assert zoomed["width"] == 1
    assert zoomed["lines"]["loss"]["x"] == list(range(1000, 1302))


@pytest.mark.parametrize(("axis", "places"), [("tokens", [100, 1000]), ("epoch", [0.01, 0.1]), ("time", [1, 10])])
def test_the_x_axis_can_be_tokens_epochs_and_time(run, axis, places):
    started(run).report(*measured(10))
    document = drawn(run, axis)
    assert document["axes"] == ["step", "tokens", "epoch", "time"]
    assert [document["lines"]["loss"]["x"][index] for index in (0, -1)] == places


def test_a_zoom_on_another_axis_selects_the_steps_there(run):
    started(run).report(*measured(100))
    assert drawn(run, "tokens", 2000, 2500)["lines"]["loss"]["x"] == [2000, 2100, 2200, 2300, 2400, 2500]


def test_a_run_that_reported_no_tokens_offers_no_axis_of_tokens(run):
    run.report(Metrics(step=1, values={"loss": 1.0}))
    assert drawn(run, "tokens")["axes"] == ["step", "time"]


def test_up_to_four_ranks_have_a_line_each(run):
    run.report(*[Metrics(step=1, rank=rank, values={"host_rss": GIB * rank}) for rank in range(4)])
    (memory,) = drawn(run)["panels"]
    assert [(line["key"], line["rank"], line["group"]) for line in memory["lines"]] == [
        (f"host_rss/{rank}", rank, "host_rss") for rank in range(4)
    ]
    assert (memory["unit"], memory["scale"] * GIB) == ("GiB", 1)


def test_many_ranks_are_one_line_with_median_and_extremes_and_single_ones_on_demand(run):
    run.report(
        *[
            Metrics(step=step, rank=rank, values={"host_rss": 100 * step + rank})
            for rank in range(64)
            for step in (1, 2)
        ]
    )
    document = drawn(run, "step", None, None, 400, (17,))
    (memory,) = document["panels"]
    assert [(line["key"], line["ranks"]) for line in memory["lines"]] == [("host_rss", 64)]
    assert document["lines"].keys() == {"host_rss", "host_rss/17"}
    line = document["lines"]["host_rss"]
    assert (line["y"], line["low"], line["high"]) == ([131.5, 231.5], [100, 200], [163, 263])
    assert document["lines"]["host_rss/17"]["y"] == [117, 217]


def test_a_rank_that_did_not_report_at_a_step_counts_with_its_last_value(run):
    run.report(*[Metrics(step=1, rank=rank, values={"host_rss": 10 * rank}) for rank in range(5)])
    run.report(Metrics(step=2, rank=4, values={"host_rss": 50}))
    line = drawn(run)["lines"]["host_rss"]
    assert (line["low"], line["y"], line["high"]) == ([0, 0], [20, 20], [40, 50])


def test_events_and_evaluations_are_marks_on_every_axis(run):
    started(run).report(*measured(10), CheckpointSaved(step=4, path="checkpoint-4", bytes=2**20))
    run.report(Metrics(step=5, values={"eval_loss": 1.0}))
    run.report(OutOfMemory(rank=0, device="cuda", phase="training", policy="fail", step=8))
    marks = {mark["kind"]: mark["at"] for mark in drawn(run)["marks"]}
    assert marks["checkpoint"] == {"step": 4, "tokens": 400, "epoch": 0.04, "time": 4}
    assert (marks["evaluation"]["step"], marks["out_of_memory"]["step"]) == (5, 8)


def test_an_event_without_a_step_is_a_mark_at_its_time(run):
    started(run).report(*measured(10))
    with db.write() as session:
        session.add(run_event(run.id, time=1007.0))
    assert [mark["at"]["step"] for mark in drawn(run)["marks"] if mark["kind"] == "stop"] == [7]


def run_event(run_id, time):
    from worker.store.tables import RunEvent

    return RunEvent(run_id=run_id, attempt=1, time=time, kind="stop", message="Stop requested.")


def test_the_predicted_peak_and_the_memory_limit_are_lines_in_the_memory_plot(run):
    started(run, forecast={"card": "cpu", "allocated_bytes": 5, "limit_bytes": 9})
    run.report(Metrics(step=1, rank=0, values={"memory_peak": 4}))
    (memory,) = drawn(run)["panels"]
    assert [(limit["label"], limit["value"]) for limit in memory["limits"]] == [
        ("predicted peak", 5),
        ("memory limit", 9),
    ]


def test_the_losses_of_data_sets_have_their_own_panel(run):
    run.report(Metrics(step=1, values={"loss": 1.0, "loss/a.jsonl": 1.0, "loss/b/c.jsonl": 2.0}))
    assert [panel["title"] for panel in drawn(run)["panels"]] == ["Loss", "Training loss of each data set"]
    assert [line["label"] for line in drawn(run)["panels"][1]["lines"]] == ["a.jsonl", "b/c.jsonl"]


def test_nan_is_a_gap_and_values_have_six_digits():
    assert rounded([0.123456789, 1234567.8, math.nan, None, 2.0]) == [0.123457, 1234570, None, None, 2]


@pytest.mark.slow
def test_a_run_of_64_ranks_stays_small(run):
    names = ("memory_allocated", "memory_reserved", "memory_peak", "host_rss")
    run.report(*measured(3000, learning_rate=1e-4, grad_norm=1.23456, tokens_per_second=12345.6))
    for rank in range(64):
        run.report(
            *[Metrics(step=step, rank=rank, values=dict.fromkeys(names, 1.5 * GIB + step)) for step in range(1, 301)]
        )
    with db.read() as session:
        document = documents.plots(session, runs.get(session=session, run_id=run.id), View())
    assert len(gzip.compress(json.dumps(document).encode())) < 40_000


def test_the_plot_of_rewards_comes_before_that_of_the_loss():
    assert [panel["key"] for panel in panels({"loss": [-1], "reward": [-1], "grad_norm": [-1]})][:2] == [
        "reward",
        "loss",
    ]
