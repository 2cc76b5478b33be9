"""The models that New run offers, and what it says of a hub id."""

import json

from played_run import PlayedRun
from stand_in_hub import serve_model

from app.pages.common import form
from app.pages.new_run import models
from worker.settings import get_settings

TINY = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500, "tie_word_embeddings": False,
}  # fmt: skip


def offered():
    return {value: label for label, value in models.choices(form.defaults())}


def model_folder(folder):
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(TINY))
    (folder / "model.safetensors").write_bytes(b"\0" * 2**20)
    return folder


def test_models_of_the_machine_of_runs_and_of_the_cache_are_offered_with_size_and_fit(home, tmp_path, monkeypatch):
    own = model_folder(tmp_path / "models" / "own")
    monkeypatch.setenv("LATHE_MODEL_FOLDERS", str(own.parent))
    get_settings.cache_clear()
    cache = tmp_path / "hub"
    model_folder(cache / "models--owner--small" / "snapshots" / "abc")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    PlayedRun("before", model="owner/used")
    run = PlayedRun("whole", method="full")
    run.claim()
    result = model_folder(get_settings().runs_dir / run.id / "model")
    run.end()
    found = offered()
    assert found[str(own)] == f"{own} (1.0 MiB, fits)"
    assert found[str(result)] == "Result of whole (1.0 MiB, fits)"
    assert {"owner/used", "owner/small", models.SUGGESTED} <= found.keys()
    assert next(iter(found.values())).startswith("Starter model (static/starter, 3.8 MiB, fits")


def test_a_hub_id_is_looked_up_and_an_offline_server_says_so(home, monkeypatch):
    models._asked.clear()
    with serve_model({"config.json": json.dumps(TINY).encode()}, "owner/there") as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        assert "owner/there is on the hub" in models.on_hub("owner/there", "")
        assert "owner/gone: is not a public model on the hub." in models.on_hub("owner/gone", "")
    assert "does not answer" in models.on_hub("owner/later", "")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "works offline" in models.on_hub("owner/offline", "")
    for local in ("static/starter", "", "word"):
        assert models.on_hub(local, "") == ""
