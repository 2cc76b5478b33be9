"""Metric series: stored, rolled up and thinned."""

import math
import random

import pytest
from sqlmodel import col, select

from worker.store import database as db
from worker.store import metrics
from worker.store import series as series_reader
from worker.store.metrics import LEVELS, WHOLE_RUN, Point, bucket_steps
from worker.store.tables import Metric, MetricRollup


def add(run, points):
    with db.write() as session:
        metrics.add(session=session, run_id=run.id, points=points)


def losses(values, start=0, every=1, name="loss", rank=WHOLE_RUN):
    return [Point(name, rank, start + index * every, 1000.0 + index, value) for index, value in enumerate(values)]


def series(run, **options):
    with db.read() as session:
        return series_reader.series(session=session, run_id=run.id, **options)


def one(run, **options):
    (only,) = series(run, **options)
    return only


def rollups_as_they_should_be(rows, level):
    """Computes the expected rollups from the rows: bucket -> (last step, its time, count, mean, low, high)."""
    buckets = {}
    for row in rows:
        buckets.setdefault((row.name, row.rank, row.step // bucket_steps(level)), []).append(row)
    expected = {}
    for key, listed in buckets.items():
        values = [row.value for row in listed if row.value is not None]
        mean = math.fsum(values) / len(values) if values else None
        extremes = (min(values), max(values)) if values else (None, None)
        expected[key] = (max(row.step for row in listed), max(row.time for row in listed), len(values), mean, *extremes)
    return expected


def assert_rollups_are_exact(run):
    with db.read() as session:
        rows = session.exec(select(Metric).where(Metric.run_id == run.id)).all()
        rollups = session.exec(select(MetricRollup).where(MetricRollup.run_id == run.id)).all()
    for level in range(1, LEVELS + 1):
        result = {
            (r.name, r.rank, r.bucket): (r.step, r.time, r.count, r.mean, r.low, r.high)
            for r in rollups
            if r.level == level
        }
        expected = rollups_as_they_should_be(rows, level)
        assert result.keys() == expected.keys()
        for key, values in expected.items():
            assert result[key] == pytest.approx(values, rel=1e-9), (level, key)


def test_stored_points_are_returned_unchanged(database, new_run):
    run = new_run()
    add(run, losses([3.0, 2.5, 2.0], start=1))
    stored = one(run)
    assert (stored.name, stored.rank, stored.step, stored.value) == ("loss", WHOLE_RUN, [1, 2, 3], [3.0, 2.5, 2.0])
    assert (stored.time, stored.low, stored.high) == ([1000.0, 1001.0, 1002.0], None, None)


def test_without_points_there_is_no_series(database, new_run):
    run = new_run()
    add(run, [])
    with db.read() as session:
        assert series_reader.latest(session=session, run_id=run.id) == {}
    assert series(run) == []


def test_reporting_a_step_again_replaces_its_value(database, new_run):
    run = new_run()
    add(run, losses([3.0, 2.0, 1.0]))
    add(run, losses([9.0, 8.0], start=1))
    assert one(run).value == [3.0, 9.0, 8.0]


def test_the_last_value_of_a_step_in_a_batch_counts(database, new_run):
    run = new_run()
    add(run, [*losses([1.0]), *losses([2.0])])
    assert one(run).value == [2.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, None])
def test_nan_and_infinity_are_stored_as_null(database, new_run, value):
    run = new_run()
    add(run, losses([1.0, value]))
    assert one(run).value == [1.0, None]


def test_runs_names_and_ranks_are_kept_apart(database, new_run):
    run, other = new_run(), new_run()
    add(other, losses([7.0]))
    add(run, [*losses([1.0]), *losses([2.0], name="memory_peak", rank=0), *losses([3.0], name="memory_peak", rank=1)])
    assert [(entry.name, entry.rank, entry.value) for entry in series(run)] == [
        ("loss", -1, [1.0]),
        ("memory_peak", 0, [2.0]),
        ("memory_peak", 1, [3.0]),
    ]
    assert [entry.rank for entry in series(run, names=["memory_peak"])] == [0, 1]


def test_rollups_are_exact_however_the_points_arrive(database, new_run):
    run, chance = new_run(), random.Random(1)
    points = losses([chance.gauss(0, 1) for _ in range(2000)])
    points += losses(
        [chance.gauss(0, 1) if chance.random() < 0.9 else None for _ in range(300)], every=7, name="eval_loss"
    )
    points += losses([chance.random() for _ in range(500)], name="memory_peak", rank=1)
    chance.shuffle(points)
    while points:
        size = chance.randint(1, 900)
        add(run, points[:size])
        points = points[size:]
    assert_rollups_are_exact(run)


def test_rollups_are_exact_after_a_resumed_run_reports_steps_again(database, new_run):
    run = new_run()
    add(run, losses([1000.0] * 1500))
    add(run, losses([1.0] * 900, start=700))
    assert_rollups_are_exact(run)
    stored = one(run, points=100, first_step=1200)
    assert set(stored.high or stored.value) == {1.0}


def test_thinning_a_long_series_keeps_a_spike(database, new_run):
    run = new_run()
    values = [1.0] * 20_000
    values[4321], values[11_111] = 50.0, -50.0
    add(run, losses(values))
    stored = one(run, points=200)
    assert stored.low is not None and stored.high is not None
    assert (max(stored.high), min(stored.low)) == (50.0, -50.0)
    assert 70 <= len(stored.step) <= 200


@pytest.mark.parametrize("length", [100, 399, 401, 1000, 3000, 9000, 30_000])
def test_a_thinned_series_has_points_of_equal_width_over_its_whole_length(database, new_run, length):
    run = new_run()
    add(run, losses([float(index) for index in range(length)]))
    stored = one(run, points=400)
    assert min(length, 130) <= len(stored.step) <= 400
    # A point is a bucket of `width` steps, numbered from 0; only the last one can be shorter.
    assert [step // stored.width for step in stored.step] == list(range(len(stored.step)))
    assert stored.step[-1] == length - 1
    assert stored.last_rows == (length - 1) % stored.width + 1
    # No row is missing or counted twice: each bucket's minimum follows the maximum of the previous one.
    lows, highs = stored.low or stored.value, stored.high or stored.value
    assert lows == [0.0, *[high + 1 for high in highs[:-1]]]


def test_a_shorter_range_has_finer_points(database, new_run):
    run = new_run()
    add(run, losses([float(index) for index in range(30_000)]))
    widths = [one(run, points=400, first_step=10_000, last_step=10_000 + steps).width for steps in (20_000, 2000, 300)]
    assert widths == [64, 6, 1]


def test_series_of_other_densities_have_points_of_the_same_width(database, new_run):
    run = new_run()
    add(run, [*losses([1.0] * 3000), *losses([2.0] * 6, every=500, name="eval_loss")])
    evaluated, trained = series(run, points=400)
    assert (evaluated.width, trained.width) == (8, 8)
    assert evaluated.value == [2.0] * 6


def test_thinning_depends_on_rows_and_not_on_steps(database, new_run):
    run = new_run()
    add(run, losses([float(index) for index in range(300)], every=100))
    assert len(one(run, points=400).step) == 300
    add(run, losses([float(index) for index in range(3000)], every=100))
    stored = one(run, points=400)
    assert 130 <= len(stored.step) <= 400
    assert stored.step[-1] == 299_900


def test_a_range_of_steps_can_be_read(database, new_run):
    run = new_run()
    add(run, losses([float(index) for index in range(5000)]))
    assert one(run, first_step=4990).step == list(range(4990, 5000))
    assert one(run, first_step=100, last_step=110).step == list(range(100, 111))
    assert one(run, last_step=3, points=10).value == [0.0, 1.0, 2.0, 3.0]
    assert series(run, first_step=5000) == []


def test_a_bucket_without_finite_values_is_null(database, new_run):
    run = new_run()
    add(run, losses([None] * 5000))
    assert set(one(run, points=100).value) == {None}


def test_the_latest_values_come_from_the_last_step_of_each_series(database, new_run):
    run = new_run()
    add(run, [*losses([3.0, 2.0]), *losses([5.0, None], name="memory_peak", rank=1)])
    with db.read() as session:
        assert series_reader.latest(session=session, run_id=run.id) == {
            ("loss", -1): (1, 2.0),
            ("memory_peak", 1): (1, None),
        }


def test_a_long_name_is_truncated(database, new_run):
    run = new_run()
    add(run, losses([1.0], name="x" * 100))
    with db.read() as session:
        assert session.exec(select(col(Metric.name))).all() == ["x" * 60]
