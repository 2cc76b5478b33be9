"""What is the most that fits, by command, REST and page: the same answers, each with the settings that apply it."""

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from commands import answer, lathe
from web import client

from app.pages.common import form
from app.pages.new_run.memory_panel import memory_html, most_that_fits
from training.config.fields import parse

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    return tmp_path


def test_command_and_rest_give_the_same_answers(llama: Path, database: str) -> None:
    flags = [
        "--method",
        "lora",
        "--max-length",
        "512",
        "--micro-batch",
        "1",
        "--gpu",
        "a100-40gb",
        "--solve",
        "gpus",
        "--solve",
        "gpu",
    ]
    output = answer("forecast", "--model", llama, *flags)
    assert [one["setting"] for one in output["solved"]] == ["gpus", "gpu"]
    assert output["solved"][0]["value"] == 1
    assert all(one["peak_bytes"] <= one["limit_bytes"] for one in output["solved"])
    body = {"model": str(llama), "method": "lora", "max_length": 512, "micro_batch_size": 1}
    asked = client().post("/api/forecasts", json=body, params={"gpu": "a100-40gb", "solve": ["gpus", "gpu"]})
    assert asked.json() == output
    refused = client().post("/api/forecasts", json=body, params={"solve": "colour"})
    assert refused.status_code == 422


def test_the_command_prints_the_answers_and_the_time(llama: Path, database: str) -> None:
    flags = ["--max-length", "512", "--micro-batch", "1", "--max-steps", "100", "--gpu", "h100", "--solve", "gpu"]
    text = lathe("forecast", "--model", llama, *flags).output
    assert "Cheapest GPU" in text
    assert re.search(r"Speed +[\d,]+ to [\d,]+ tokens/s", text)
    assert "Enter prices" in text


def test_new_run_applies_each_answer_with_a_button(llama: Path, database: str) -> None:
    values: dict[str, Any] = form.defaults() | {"model": str(llama), "method": "lora", "max_length": "512"}
    html = str(most_that_fits(values, "h100", "", simulate=False))
    sent = [json.loads(unescape(item)) for item in re.findall(r'data-send="([^"]*)"', html)]
    assert {"card"} in [set(one) for one in sent]
    changed = [name for one in sent for name in one.get("changes", {})]
    assert {"max_length", "micro_batch_size", "lora_r"} <= set(changed)
    for one in sent:
        assert parse({"model": "m", "data": "d"} | one.get("changes", {}))
    assert "Time and cost" in memory_html(values | {"max_steps": "10"}, "h100", "")
