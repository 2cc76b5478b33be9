"""A model, data and a configuration to submit, without a broker."""

import json
import struct

import pytest

from training.config.run_config import RunConfig
from worker import celery_app

ROW = json.dumps({"prompt": "question", "completion": "answer"}) + "\n"


@pytest.fixture
def rung(monkeypatch):
    """The ids of runs for which a message was sent, without a broker."""
    heard = []
    monkeypatch.setattr(celery_app, "notify", lambda run_id: heard.append(run_id) or True)
    return heard


@pytest.fixture
def model(tmp_path):
    """A folder that looks like a model: one tensor of 4 elements."""
    folder = tmp_path / "models" / "tiny"
    folder.mkdir(parents=True)
    facts = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64}
    (folder / "config.json").write_text(json.dumps(facts))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    (folder / "tokenizer.json").write_text("{}")
    return folder


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(ROW * 20)
    return path


@pytest.fixture
def config(model, data):
    def make(**settings):
        return RunConfig.model_validate({"model": str(model), "data": str(data)} | settings)

    return make
