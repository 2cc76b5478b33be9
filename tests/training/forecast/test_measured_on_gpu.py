"""The forecast beside the memory that runs took on a GPU (benchmarks/gpu/h200.json)."""

import json
from pathlib import Path

import pytest

from benchmarks.gpu.memory import TABLE, foretell
from benchmarks.gpu.memory_cases import LARGE, write_shapes
from training.forecast.gpus import CARDS

ROWS = json.loads((Path(__file__).parents[3] / "benchmarks/gpu/h200.json").read_text())["parts"]["memory"]["tables"][
    TABLE
]
CASES = {case.name: case for case in LARGE}


@pytest.fixture(scope="module")
def shapes(tmp_path_factory):
    home = tmp_path_factory.mktemp("shapes")
    write_shapes(home)
    return home


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["configuration"])
def test_the_forecast_is_what_an_h200_measured(shapes, row):
    foretold = foretell(CASES[row["configuration"]], shapes, CARDS["h200"])
    assert foretold.live == pytest.approx(row["allocated_bytes"], rel=0.08)
    assert foretold.whole == pytest.approx(row["nvml_bytes"], rel=0.11)


def test_each_measured_configuration_is_one_of_the_benchmark():
    assert {row["configuration"] for row in ROWS} <= CASES.keys()
    assert len(ROWS) == 14
