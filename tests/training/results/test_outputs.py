"""The outputs of a run besides its adapter: a merged model and a model card."""

import hashlib
import json
import shutil
from pathlib import Path

import gguf
import huggingface_hub
import pytest
import torch
import warm
from commands import lathe
from peft import PeftModel
from played_run import PlayedRun
from safetensors.torch import load_file
from trained import CACHE, RECIPES, copy_of, trained
from trainer_process import Trained, train_here
from transformers import AutoModelForCausalLM

from tests.stand_in_hub import receive
from training.results import finishing, merging
from training.run_folder.events import Metrics, Note, PhaseStarted
from training.run_folder.stages import STAGES, Saved

SHORT = {"max_steps": 2, "eval_steps": 0, "learning_rate": 0.05}

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.fixture
def inputs() -> tuple[Path, Path]:
    return RECIPES["merged"].inputs


@pytest.fixture
def merged() -> Trained:
    return trained("merged")


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.inference_mode():
        return model.eval()(torch.arange(24)[None]).logits


def warnings_of(run: Trained) -> list[str]:
    return [note.message for note in run.of(Note) if note.level == "warning"]


def test_the_merged_model_computes_what_base_and_adapter_compute(merged: Trained, inputs: tuple[Path, Path]) -> None:
    base = AutoModelForCausalLM.from_pretrained(str(inputs[0]))
    before = logits(base)
    together = logits(PeftModel.from_pretrained(base, str(merged.run_dir / "adapter")))
    alone = logits(AutoModelForCausalLM.from_pretrained(str(merged.run_dir / "merged")))
    assert torch.allclose(alone, together, atol=1e-5)
    assert not torch.allclose(alone, before, atol=1e-2)
    names = {path.name for path in (merged.run_dir / "merged").iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "README.md"} <= names


def test_qlora_is_merged_into_the_unquantized_base(tmp_path: Path, inputs: tuple[Path, Path]) -> None:
    run_dir = tmp_path / "run"
    train_here(run_dir, *inputs, **SHORT, method="qlora", merge_adapter=True)
    base = AutoModelForCausalLM.from_pretrained(str(inputs[0]))
    together = logits(PeftModel.from_pretrained(base, str(run_dir / "adapter")))
    model = AutoModelForCausalLM.from_pretrained(str(run_dir / "merged"))
    assert model.dtype == torch.float32
    assert torch.allclose(logits(model), together, atol=1e-5)


def test_a_finished_run_is_merged_afterwards_by_the_same_program(tmp_path: Path, merged: Trained) -> None:
    run_dir = tmp_path / "run"
    copy_of("merged", run_dir, "merged")
    assert merging.main(run_dir) == 0
    for name in ("model.safetensors", "README.md"):
        assert (run_dir / "merged" / name).read_bytes() == (merged.run_dir / "merged" / name).read_bytes()


def test_a_missing_base_model_is_an_error_without_leftovers(
    tmp_path: Path, inputs: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    copy_of("merged", run_dir, "merged")
    config = (run_dir / "config.json").read_text()
    (run_dir / "config.json").write_text(config.replace(str(inputs[0]), f"{inputs[0]}-gone"))
    assert merging.main(run_dir) == 1
    assert json.loads(capsys.readouterr().out)["problem"]["field"] == "model"
    assert not [path for path in run_dir.iterdir() if "merged" in path.name]


def test_with_a_full_disk_the_merge_fails_but_not_the_run(
    tmp_path: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("training.files.shutil.disk_usage", lambda _: usage._replace(free=1000))
    run = train_here(tmp_path / "run", *inputs, **SHORT, merge_adapter=True)
    (note,) = warnings_of(run)
    assert "The merged model was not written." in note
    assert "the disk has 1,000 free" in note
    assert run.summary["steps"] == 2
    assert not (tmp_path / "run/merged").exists()


def test_a_finished_run_is_pushed_with_its_card(
    tmp_path: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with receive() as (address, received):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_good")
        run = train_here(tmp_path / "run", *inputs, **SHORT, push_to_hub="owner/model", push_private=False)
    assert warnings_of(run) == []
    assert received.private is False
    for name in ("adapter_model.safetensors", "README.md"):
        assert received.files[name] == (tmp_path / "run/adapter" / name).read_bytes()
    assert b"hf_good" not in (tmp_path / "run/events.jsonl").read_bytes()


def test_a_refused_push_is_noted_and_the_run_is_finished(
    tmp_path: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    with receive() as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_bad")
        run = train_here(tmp_path / "run", *inputs, **SHORT, push_to_hub="owner/model")
    (note,) = warnings_of(run)
    assert note.startswith("The result was not pushed. push_to_hub") and note.endswith("run `lathe resume RUN`.")
    assert "refused by the hub (401)" in note
    assert "hf_bad" not in note
    assert run.summary["steps"] == 2 and run.summary["undone"].keys() == {"pushing"}


def test_every_stage_has_its_work() -> None:
    assert finishing.WORK.keys() == {stage.phase for stage in STAGES}


def test_what_was_not_done_is_done_later_without_training(
    tmp_path: Path, inputs: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Merging fails and so does the push, and the rows are answered again, as after a kill in that phase."""
    settings = SHORT | {"push_to_hub": "owner/model", "answer_rows": 2, "merge_adapter": True, "verify_rows": 2}
    monkeypatch.setattr(finishing, "merge", lambda *_: 1 / 0)
    with receive() as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_bad")
        run = train_here(tmp_path / "run", *inputs, **settings)
    undone = run.summary["undone"]
    assert undone.keys() == {"merging", "pushing"} and undone["merging"] == "ZeroDivisionError: division by zero"
    assert run.summary["parity"]["forms"].keys() == {"adapter"}
    monkeypatch.undo()
    saved = Saved.read(run.run_dir)
    assert saved
    saved.done.remove("answering")
    saved.resumes = True
    saved.write(run.run_dir)
    count = len(run.events)
    with receive() as (address, received):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", "hf_good")
        again = train_here(tmp_path / "run", *inputs, **settings)
    before, after = dict(run.summary), again.summary
    del before["undone"], before["parity"]
    assert after.pop("parity")["forms"].keys() == {"adapter", "merged"}
    assert after == before
    later = again.events[count:]
    phases = [event.phase for event in later if isinstance(event, PhaseStarted)]
    assert phases == ["answering", "merging", "verifying", "describing", "pushing"]
    assert not any(isinstance(event, Metrics) for event in later)
    assert "adapter_model.safetensors" in received.files


def test_the_card_begins_with_the_metadata_of_hubs(merged: Trained) -> None:
    card = huggingface_hub.ModelCard.load(merged.run_dir / "adapter/README.md")
    assert card.data.to_dict() == {
        "base_model": "llama",
        "base_model_relation": "adapter",
        "datasets": ["counting.jsonl"],
        "library_name": "peft",
        "pipeline_tag": "text-generation",
        "tags": ["lathe", "sft", "lora"],
    }
    of_merged = huggingface_hub.ModelCard.load(merged.run_dir / "merged/README.md").data
    assert (of_merged.library_name, of_merged.base_model_relation) == ("transformers", "merge")


def test_the_card_has_the_lineage_and_no_folder_of_this_machine(merged: Trained, inputs: tuple[Path, Path]) -> None:
    text = (merged.run_dir / "adapter/README.md").read_text()
    for line in (
        "# a run",
        "| Run | run12, attempt 2 |",
        "| Cloned from run | run11 |",
        f"| Training data | counting.jsonl, SHA-256 `{hashlib.sha256(inputs[1].read_bytes()).hexdigest()}` |",
        "| Seed | 42 |",
        "| Hardware | CPU (",
        "| Optimizer | adamw (torch.AdamW) |",
        "| Evaluation perplexity | ",
        "| ROUGE-L, 1 held-out rows | ",
        f"| torch | {torch.__version__} |",
        "learning_rate: 0.05",
        "model: llama",
    ):
        assert line in text
    assert str(CACHE) not in text


def test_a_finished_run_is_exported_from_the_command_line_merged_and_as_gguf(
    home: Path, merged: Trained, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = PlayedRun().claim().end()
    folder = home / "runs" / run.id
    copy_of("merged", folder, "merged")
    warm.use_python(monkeypatch)
    done = lathe("export", run.id, "--gguf", "-o", tmp_path / "mine.gguf")
    assert done.exit_code == 0, done.stderr
    for name in ("model.safetensors", "README.md"):
        assert (folder / "merged" / name).read_bytes() == (merged.run_dir / "merged" / name).read_bytes()
    read = {tensor.name: tensor.data for tensor in gguf.GGUFReader(tmp_path / "mine.gguf").tensors}
    stored = load_file(folder / "merged/model.safetensors")
    assert read["blk.0.ffn_up.weight"].tobytes() == stored["model.layers.0.mlp.up_proj.weight"].numpy().tobytes()
    assert (folder / "model.gguf").is_file()
    done = lathe("export", run.id, "--gguf", "--type", "q8_0", "-o", tmp_path)
    assert done.exit_code == 0, done.stderr
    assert (tmp_path / f"{run.id}-Q8_0.gguf").stat().st_size < (tmp_path / "mine.gguf").stat().st_size / 2
    done = lathe("export", run.id, "--gguf", "--adapter", "-o", tmp_path / "adapter.gguf")
    assert done.exit_code == 0, done.stderr
    fields = gguf.GGUFReader(tmp_path / "adapter.gguf").fields
    assert fields["general.type"].contents() == "adapter"
