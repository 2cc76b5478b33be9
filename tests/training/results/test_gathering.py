"""A checkpoint, whole or in shards, gives the very weights that the run saves at the same step."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from trained import copy_of, resumable

from training.results.gathering import main

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]


@pytest.mark.parametrize(
    ("strategy", "method", "recomputed"),
    [("single", "lora", "none"), ("zero3", "full", "none"), ("fsdp", "lora", "full")],
)
def test_a_gathered_checkpoint_is_the_saved_result(
    tmp_path: Path, strategy: str, method: str, recomputed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = resumable(strategy, method, gradient_checkpointing=recomputed)
    run_dir = copy_of(recipe, tmp_path / "run", "checkpoint-2")
    assert main(run_dir, tmp_path / "gathered") == 0, capsys.readouterr().err
    saved = run_dir / ("model" if method == "full" else "adapter")
    expected, found = (
        {name: tensor for file in folder.glob("*.safetensors") for name, tensor in load_file(file).items()}
        for folder in (saved, tmp_path / "gathered")
    )
    assert expected and found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert (tmp_path / "gathered/tokenizer.json").is_file()
    (run_dir / "checkpoints/checkpoint-4/manifest.json").unlink()
    assert main(run_dir, tmp_path / "again") == 1
    assert "No checkpoint can be gathered" in capsys.readouterr().out
