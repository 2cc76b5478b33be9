"""The shards of a checkpoint give the very weights that the run saves at the same step."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_data, make_model
from trainer_process import start

from training.results.gathering import main

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
TWO = {"num_processes": 2, "micro_batch_size": 2, "max_steps": 1, "eval_steps": 0, "save_steps": 1, "precision": "fp32"}


@pytest.mark.parametrize(("strategy", "method"), [("zero3", "full"), ("fsdp", "lora")])
def test_a_gathered_checkpoint_is_the_saved_result(
    tmp_path: Path, strategy: str, method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model, data, run_dir = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl"), tmp_path / "run"
    trained = start(run_dir, model, data, strategy=strategy, method=method, **TWO)
    assert trained.finish() == 0, trained.log()
    assert main(run_dir, tmp_path / "gathered") == 0, capsys.readouterr().err
    saved = run_dir / ("model" if method == "full" else "adapter")
    expected, found = (
        {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
        for folder in (saved, tmp_path / "gathered")
    )
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (tmp_path / "gathered/tokenizer.json").is_file()
    (run_dir / "checkpoints/checkpoint-1/manifest.json").unlink()
    assert main(run_dir, tmp_path / "again") == 1
    assert "No checkpoint can be gathered" in capsys.readouterr().err
