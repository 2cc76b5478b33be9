"""The charts of a run, as figures in plain JSON."""

import json
from itertools import pairwise

import pytest

from app.pages.run.chart_layout import Mark
from app.pages.run.charts import METRICS, PANELS, figure, rounded, smoothed
from worker.store.series import Series

GIB = 1024**3


def series(name, values, rank=-1, low=None, high=None):
    return Series(name, rank, list(range(1, len(values) + 1)), [0.0] * len(values), values, low, high)


def drawn(created):
    """The traces that show in the legend or under the cursor, by what the cursor says of them."""
    return {trace["hovertemplate"].split(":")[0]: trace for trace in created["data"] if trace.get("hovertemplate")}


def test_a_run_without_measurements_has_no_figure():
    assert figure([]) is None


def test_metrics_that_no_panel_shows_are_left_out():
    assert figure([series("epoch", [0.1, 0.2])]) is None


def test_panels_share_one_step_axis():
    created = figure(
        [series("loss", [2.0, 1.0]), series("learning_rate", [1e-4, 5e-5]), series("host_rss", [GIB, GIB], rank=0)]
    )
    assert {trace.get("xaxis", "x") for trace in created["data"]} == {"x"}
    assert [trace["yaxis"] for trace in created["data"]] == ["y", "y2", "y3"]
    assert created["layout"]["xaxis"]["anchor"] == "y3"


def test_panels_are_stacked_without_overlap():
    created = figure([series(name, [1.0, 2.0], rank=0) for name in METRICS])
    domains = [created["layout"][f"yaxis{number}"]["domain"] for number in ("", *range(2, len(PANELS) + 1))]
    assert all(above[0] > below[1] for above, below in pairwise(domains))
    assert domains[-1][0] == pytest.approx(0)


def test_memory_is_plotted_in_gib_per_rank():
    created = figure([series("memory_peak", [GIB, 3 * GIB], rank=0), series("memory_peak", [2 * GIB, 2 * GIB], rank=1)])
    assert drawn(created)["peak, rank 0"]["y"] == [1.0, 3.0]
    assert drawn(created)["peak, rank 1"]["line"]["dash"] == "dot"
    assert "rank 1 dotted" in created["layout"]["annotations"][0]["text"]


def test_a_rolled_up_series_has_a_band_from_minimum_to_maximum():
    created = figure([series("loss", [2.0, 1.0], low=[1.5, 0.5], high=[9.0, 1.5])])
    low, high, mean = created["data"]
    assert (low["y"], high["y"], mean["y"]) == ([1.5, 0.5], [9.0, 1.5], [2.0, 1.0])
    assert high["fill"] == "tonexty"


def test_a_series_of_single_rows_has_no_band():
    assert len(figure([series("loss", [2.0, 1.0], low=[2.0, 1.0], high=[2.0, 1.0])])["data"]) == 1


def test_nan_and_missing_values_are_gaps_and_the_figure_is_valid_json():
    created = figure([series("loss", [2.0, None, float("nan"), float("inf"), 1.0])])
    assert json.loads(json.dumps(created, allow_nan=False))["data"][0]["y"] == [2.0, None, None, None, 1.0]


def test_smoothing_keeps_the_measured_line_behind_it_and_starts_at_the_first_value():
    measured, smooth = figure([series("loss", [4.0, 2.0, 2.0])], smoothing=0.5)["data"]
    assert measured["y"] == [4.0, 2.0, 2.0]
    assert smooth["y"][0] == 4.0
    assert 2.0 < smooth["y"][2] < smooth["y"][1] < 4.0


def test_smoothing_skips_gaps():
    assert smoothed([1.0, None, 1.0], 0.9) == [pytest.approx(1.0), None, pytest.approx(1.0)]


def test_logarithmic_loss_leaves_the_other_panels_linear():
    layout = figure([series("loss", [2.0]), series("grad_norm", [1.0])], log_loss=True)["layout"]
    assert (layout["yaxis"]["type"], layout["yaxis2"]["type"]) == ("log", "linear")


def test_checkpoints_and_resumes_are_marked_differently_and_say_what_they_are():
    created = figure(
        [series("loss", [2.0, 1.0])], [Mark(1, "checkpoint", "Checkpoint at step 1"), Mark(2, "resumed", "Resumed")]
    )
    saved, resumed = created["layout"]["shapes"]
    assert saved["x0"] == 1
    assert saved["line"] != resumed["line"]
    assert created["data"][-1]["text"] == ["Checkpoint at step 1", "Resumed"]


def test_the_zoom_is_kept_within_a_run():
    assert figure([series("loss", [1.0])], revision="abc")["layout"]["uirevision"] == "abc"


def test_numbers_are_sent_with_five_digits():
    assert rounded([0.123456789, 123456.789, 2 * GIB + 1], 1) == [0.12346, 123460.0, 2147500000.0]


def test_a_figure_of_eight_ranks_stays_small():
    lines = [series(name, [1.23456789] * 50, rank=rank) for rank in range(8) for name in METRICS[-4:]]
    once = [
        name for name in METRICS[:-4] if "accuracy" not in name and "margin" not in name
    ]  # those are of other tasks
    lines += [series(name, [1.23456789] * 400) for name in once]
    assert len(json.dumps(figure(lines), separators=(",", ":"))) < 60_000
