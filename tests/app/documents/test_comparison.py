"""Comparison of runs: metrics with units, and only the settings that differ."""

import json

import pytest
from click.testing import CliRunner
from played_run import GIB, SUMMARY, PlayedRun

from app.cli.__main__ import main


@pytest.fixture
def two(home):
    """A finished LoRA run, and a full fine-tuning run that has not started."""
    lora = PlayedRun("adapter | small", method="lora").claim().end()
    return lora.id, PlayedRun("whole", method="full", learning_rate=2e-5).id


def told(*arguments):
    done = CliRunner().invoke(main, ["compare", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_metrics_have_units_and_memory_is_the_maximum_over_ranks(two):
    lines = {line.split("  ")[0]: line for line in told(*two).splitlines()}
    assert lines["Peak memory"].split()[-3:] == ["3.5", "GiB", "-"]
    assert "294,912" in lines["Trainable parameters"] and "0.2364%" in lines["Trainable"]
    assert "3.08 steps/s" in lines["Steps"]


def test_only_different_settings_are_shown(two):
    settings = json.loads(told(*two, "--json"))["settings"]
    assert settings == {"learning_rate": [2e-4, 2e-5], "method": ["lora", "full"]}


def test_the_document_has_values_in_the_order_of_the_runs(two):
    data = json.loads(told(*reversed(two), "--json"))
    assert [run["id"] for run in data["runs"]] == list(reversed(two))
    assert data["measures"]["peak_bytes"] == [None, 7 * GIB // 2]
    assert data["measures"]["final_loss"] == [None, SUMMARY["final_loss"]]


def test_run_names_cannot_break_a_markdown_table(two):
    lines = told(*two, "--markdown").splitlines()
    assert "adapter \\| small" in lines[0]
    assert {line.replace("\\|", "").count("|") for line in lines} == {4}


def test_a_missing_run_is_named_in_the_error(two):
    done = CliRunner().invoke(main, ["compare", two[0], "nothing"])
    assert done.exit_code != 0 and "nothing" in done.output
