"""A simulated step on New run and on the command line."""

import json

from commands import answer, lathe

from app.cli_forecast import in_words
from app.pages.simulation import simulation_html

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500, "tie_word_embeddings": False,
}  # fmt: skip


def points(*live):
    return [{"phase": phase, "module": "m", "bytes": {"weights": 10, "activations": amount}} for phase, amount in live]


def test_the_command_simulates_a_step_and_names_the_line_of_its_peak(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY))
    flags = ["forecast", "--model", tmp_path, "--gpu", "24gib", "--max-length", "64", "--method", "full", "--simulate"]
    found = answer(*flags)
    done = found["simulated"]
    assert done["fits"] is True
    assert sum(done["parts"].values()) == done["peak_bytes"]
    assert abs(done["peak_bytes"] / (found["peak_bytes"] - found["parts"]["context"] - found["parts"]["slack"]) - 1) < 0.2
    told = in_words(done)
    assert "A simulated step. It fits. The peak is in the " in told
    assert done["line"] in told


def test_a_model_that_cannot_be_built_is_refused_with_its_reason(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY | {"model_type": "no_such_model"}))
    result = lathe("forecast", "--model", tmp_path, "--gpu", "24gib", "--max-length", "64", "--simulate")
    assert result.exit_code == 1
    assert "model" in result.stderr


def test_the_picture_lays_kinds_on_one_another_and_marks_passes_that_have_room():
    done = {
        "peak_bytes": 40, "parts": {"weights": 10, "activations": 30}, "phase": "backward", "operator": "aten.mm.default",
        "module": "model.layers.1.mlp", "line": "modeling_llama.py:176", "function": "LlamaMLP.forward", "fits": False,
        "timeline": points(("forward", 0), ("forward", 30), ("backward", 30), ("backward", 20), ("backward", 0), ("optimizer", 0)),
    }  # fmt: skip
    told = str(simulation_html(done))
    assert told.count("<polygon") == 2
    assert '<polygon class="part part-weights" points="0.0,112.5 112.0,112.5' in told
    assert ">backward</text>" in told
    assert "Does not fit" in told
    assert "modeling_llama.py:176 in LlamaMLP.forward" in told


def test_what_could_not_be_simulated_says_why():
    problem = {"field": "model", "value": "m", "message": "cannot be simulated.", "fix": "Go by the forecast."}
    assert "Go by the forecast." in str(simulation_html({"problem": problem}))
