"""Runs side by side: measures with their units, and only the settings in which they differ."""

import json

import pytest
from click.testing import CliRunner
from played_run import GIB, SUMMARY, PlayedRun

from app.cli import main


@pytest.fixture
def two(home):
    """A LoRA run that has finished, and a full one that has not begun."""
    lora = PlayedRun("adapter | small", method="lora").claim().end()
    return lora.id, PlayedRun("whole", method="full", learning_rate=2e-5).id


def told(*arguments):
    done = CliRunner().invoke(main, ["compare", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def test_measures_have_units_and_memory_is_that_of_the_rank_with_most(two):
    lines = {line.split("  ")[0]: line for line in told(*two).splitlines()}
    assert lines["Peak memory"].split()[-3:] == ["3.5", "GiB", "-"]
    assert "294,912" in lines["Trainable parameters"] and "0.2364%" in lines["Trainable"]
    assert "3.08 steps/s" in lines["Steps"]


def test_settings_are_told_where_they_differ_alone(two):
    settings = json.loads(told(*two, "--json"))["settings"]
    assert settings == {"learning_rate": [2e-4, 2e-5], "method": ["lora", "full"]}


def test_the_document_holds_numbers_in_the_order_of_the_runs(two):
    found = json.loads(told(*reversed(two), "--json"))
    assert [run["id"] for run in found["runs"]] == list(reversed(two))
    assert found["measures"]["peak_bytes"] == [None, 7 * GIB // 2]
    assert found["measures"]["final_loss"] == [None, SUMMARY["final_loss"]]


def test_a_markdown_table_keeps_its_columns_whatever_a_run_is_called(two):
    lines = told(*two, "--markdown").splitlines()
    assert "adapter \\| small" in lines[0]
    assert {line.replace("\\|", "").count("|") for line in lines} == {4}


def test_a_run_that_is_not_there_is_named(two):
    done = CliRunner().invoke(main, ["compare", two[0], "nothing"])
    assert done.exit_code != 0 and "nothing" in done.output
