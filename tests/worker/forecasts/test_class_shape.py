"""Models whose layers no formula knows: read from their class, stored, simulated, or refused with the reason."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import warm
from commands import answer, lathe

from benchmarks.families.inputs import small
from training.config.task import Task
from training.model_info.config_json import ModelError
from worker.forecasts import shapes, solving
from worker.forecasts.forecast import Setup
from worker.machine.programs import Program

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture(autouse=True)
def warm_python(monkeypatch: pytest.MonkeyPatch) -> None:
    warm.use_python(monkeypatch)


def write(folder: Path, model_type: str, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    small(model_type).save_pretrained(folder)
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    return file


def test_a_class_is_read_once_and_then_known_without_it(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = write(tmp_path / "model", "deepseek_v3")
    shape = shapes.shape_at(str(config.parent))
    assert shape.counted_by == "class" and shape.all_linear > 0
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr("worker.machine.programs.LAYERS", Program("no.such.program", 2**30, 10))
    assert shapes.shape_at(str(config)) == shape
    with pytest.raises(ModelError, match="cannot say how much memory it needs: its class cannot be read here"):
        shapes.shape_at(str(config), task=Task.CLASSIFICATION)


def test_an_architecture_that_transformers_does_not_have_is_refused_with_the_reason(home: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "chatglm", "hidden_size": 64, "auto_map": {"AutoConfig": "x.Y"}}))
    result = lathe("forecast", "--model", tmp_path, "--gpu", "h100")
    assert result.exit_code == 1
    assert "cannot say how much memory it needs" in result.stderr


def test_layers_that_the_formula_does_not_know_are_simulated(home: Path, tmp_path: Path) -> None:
    write(tmp_path / "model", "qwen3_next")
    flags = "--gpu h100 --max-length 64 --micro-batch 1 --method full"
    output = answer("forecast", "--model", tmp_path / "model", *flags.split())
    assert not output["fits"] and output["reasons"][0].startswith("The formula cannot say")
    assert output["simulated"]["fits"]
    assert output["simulated"]["parts"]["activations"] > 0


def test_a_simulated_step_moves_the_border_and_confirms_it(home: Path, tmp_path: Path) -> None:
    from training.config.choices import Wanted
    from training.config.fields import parse

    write(tmp_path / "model", "llama")
    settings = parse(
        {"model": str(tmp_path / "model"), "data": "none", "method": "full", "memory_limit": 120, "micro_batch_size": 2}
    )
    setup = Setup(settings, replace(shapes.shape_at(settings.model), longest=128), None)
    (formula,) = solving.solved(setup, [Wanted.MICRO_BATCH_SIZE])
    (found,) = solving.solved(setup, [Wanted.MICRO_BATCH_SIZE], simulate=True)
    assert found.confirmed and formula.confirmed is None
    assert isinstance(found.value, int) and isinstance(formula.value, int)
    assert abs(found.value - formula.value) <= 0.2 * found.value
