"""bitsandbytes and torchao are left out of ranks that do not use them."""

import importlib.util
import json
import sys

import pytest
from subtest_table import table

from training.config.run_config import RunConfig
from training.unused_libraries import LIBRARIES, leave_out, may_quantize


@pytest.fixture
def model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def config(folder, **settings):
    return RunConfig.model_validate({"model": str(folder), "data": "rows.jsonl"} | settings)


@table(
    "settings",
    [
        {"method": "qlora"},
        {"method": "lora", "quantization": "8bit"},
        {"optimizer": "adamw_8bit"},
        {"optimizer": "adamw_torchao_4bit"},
        {"lora_init": "loftq"},
        {"model": "owner/on-the-hub"},
    ],
)
def test_a_run_that_may_quantize_keeps_them(model, settings):
    assert may_quantize(config(model, **settings))


def test_a_quantized_model_keeps_them(model):
    (model / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "bitsandbytes"}}))
    assert may_quantize(config(model))


def test_another_run_does_not_find_them(model, monkeypatch):
    for name in LIBRARIES:
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert all(importlib.util.find_spec(name) for name in LIBRARIES)
    leave_out(config(model))
    assert not any(importlib.util.find_spec(name) for name in LIBRARIES)


def test_a_library_that_is_already_imported_stays(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", json)
    leave_out(config(model))
    assert sys.modules["torchao"] is json
