"""A simulated step on New run and on the command line."""

import json

import pytest
from commands import answer, lathe

from app.format.forecast_text import simulation_page
from app.pages.new_run.memory_html import simulation_html

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500, "tie_word_embeddings": False,
}  # fmt: skip


def points(*live):
    return [{"phase": phase, "module": "m", "bytes": {"weights": 10, "activations": amount}} for phase, amount in live]


@pytest.mark.nightly
@pytest.mark.slow
def test_the_command_simulates_a_step_and_names_the_line_of_its_peak(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    flags = ["forecast", "--model", tmp_path, "--gpu", "24gib", "--max-length", "64", "--method", "full", "--simulate"]
    output = answer(*flags)
    done = output["simulated"]
    assert done["fits"] is True
    assert sum(done["parts"].values()) == done["peak_bytes"]
    assert (
        abs(done["peak_bytes"] / (output["peak_bytes"] - output["parts"]["context"] - output["parts"]["slack"]) - 1)
        < 0.2
    )
    text = simulation_page(done)
    assert "Simulated step. It fits. The peak is in the " in text
    assert done["line"] in text


@pytest.mark.slow
@pytest.mark.parametrize(("share", "fits"), [(1.08, True), pytest.param(0.92, False, marks=pytest.mark.nightly)])
def test_a_limit_close_to_the_forecast_is_decided_by_a_simulated_step(tmp_path, share, fits):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    flags = [
        "forecast",
        "--model",
        tmp_path,
        "--gpu",
        "cpu",
        "--max-length",
        "512",
        "--method",
        "full",
        "--memory-limit",
    ]
    enough = answer(*flags, 1000)
    assert (enough["fits"], enough["close"], "simulated" in enough) == (True, False, False)
    needed = enough["peak_bytes"] / 2**20
    close = answer(*flags, int(needed * share))
    assert (close["fits"], close["close"], close["simulated"]["fits"]) == (fits, True, fits)
    assert sum(close["simulated"]["parts"].values()) == close["simulated"]["peak_bytes"]
    assert "simulated" not in answer(*flags, int(needed), "--no-simulate")


@pytest.mark.nightly
@pytest.mark.slow
def test_a_model_that_cannot_be_built_is_refused_with_its_reason(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"model_type": "no_such_model"}))
    result = lathe("forecast", "--model", tmp_path, "--gpu", "24gib", "--max-length", "64", "--simulate")
    assert result.exit_code == 1
    assert "model" in result.stderr


def test_the_chart_stacks_kinds_and_labels_passes_with_space():
    done = {
        "peak_bytes": 40, "parts": {"weights": 10, "activations": 30}, "phase": "backward", "operator": "aten.mm.default",
        "module": "model.layers.1.mlp", "line": "modeling_llama.py:176", "function": "LlamaMLP.forward", "fits": False,
        "timeline": points(("forward", 0), ("forward", 30), ("backward", 30), ("backward", 20), ("backward", 0), ("optimizer", 0)),
    }  # fmt: skip
    text = str(simulation_html(done))
    assert text.count("<polygon") == 2
    assert '<polygon class="part part-weights" points="0.0,112.5 112.0,112.5' in text
    assert ">backward</text>" in text
    assert "Does not fit" in text
    assert "modeling_llama.py:176 in LlamaMLP.forward" in text


def test_a_failed_simulation_shows_the_reason():
    problem = {"field": "model", "value": "m", "message": "cannot be simulated.", "fix": "Go by the forecast."}
    assert "Go by the forecast." in str(simulation_html({"problem": problem}))
