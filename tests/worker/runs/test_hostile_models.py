"""Files of a model that an account may have sent, such as those of a restored run, cost the web server no memory."""

import json
import re
import shutil
import struct
from pathlib import Path

import pytest

from training.config.run_config import RunConfig
from training.model_info.folder import tensor_shapes
from worker.runs import checks
from worker.runs.settle import settle
from worker.settings import ROOT

MOST_MEMORY = 100 * 2**20
STARTER = ROOT / "static" / "starter"


def status(name):
    return int(re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[1]) * 1024


@pytest.fixture
def teacher(tmp_path):
    """A copy of the starter model."""
    return shutil.copytree(STARTER, tmp_path / "teacher")


def growth(action):
    """The most memory that an action takes."""
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    action()
    return status("VmHWM") - before


def test_a_tokenizer_is_compared_in_a_process_of_its_own(home, teacher):
    config = RunConfig(model="static/starter", data="none", task="distill", teacher=str(teacher))
    assert list(checks.teacher_problems(settle(config))) == []
    tokenizer = json.loads((teacher / "tokenizer.json").read_text())
    first = min(tokenizer["model"]["vocab"])
    tokenizer["model"]["vocab"][first] = 999_999
    (teacher / "tokenizer.json").write_text(json.dumps(tokenizer))
    (problem,) = checks.teacher_problems(settle(config))
    assert "has another tokenizer: 1 of" in problem.message
    (teacher / "tokenizer.json").write_text("[" + "[]," * 3_000_000 + "[]]")
    assert growth(lambda: list(checks.teacher_problems(settle(config)))) < MOST_MEMORY


def test_a_safetensors_header_of_many_values_is_refused_unparsed(teacher):
    header = ("[" + "[]," * 3_000_000 + "[]]").encode()
    (teacher / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)

    def read():
        with pytest.raises(ValueError, match="more than 1,500,000 values"):
            tensor_shapes(teacher)

    assert growth(read) < MOST_MEMORY
