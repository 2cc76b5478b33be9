"""The tokens and epochs that a run reports, which the plots can have as their x axis."""

from itertools import pairwise
from pathlib import Path

import pytest
from tiny import make_data, make_model
from trainer_process import train_here


@pytest.mark.train
def test_tokens_and_epochs_grow_and_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    inputs = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl")
    settings = {"eval_steps": 0, "save_steps": 3, "logging_steps": 2}
    whole = train_here(tmp_path / "run", *inputs, **settings)
    tokens, epochs = whole.series("tokens"), whole.series("epoch")
    assert all(before < after for before, after in pairwise(tokens.values()))
    assert list(epochs.values()) == sorted(epochs.values())
    last = sorted((tmp_path / "run/checkpoints").iterdir(), key=lambda path: int(path.name.split("-")[1]))[-1]
    for later in ("adapter", str(last.relative_to(tmp_path / "run"))):
        (tmp_path / "run" / later).rename(tmp_path / later.replace("/", "-"))
    resumed = train_here(tmp_path / "run", *inputs, **settings)
    again = resumed.series("tokens")
    assert len(again) > 0
    assert again == {step: tokens[step] for step in again}
