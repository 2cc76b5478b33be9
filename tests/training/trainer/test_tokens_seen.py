"""The tokens and epochs that a run reports, which the plots can have as their x axis."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, make_model
from trainer_process import start, train_here


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


@pytest.mark.train
def test_ranks_without_rows_at_the_end_of_an_epoch_count_no_tokens_and_no_part_of_it(tmp_path: Path) -> None:
    inputs = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl")
    settings: dict[str, Any] = {
        "data_slice": "29",
        "eval_steps": 0,
        "max_steps": None,
        "epochs": 2,
        "micro_batch_size": 2,
    }
    one = train_here(tmp_path / "one", *inputs, **settings, gradient_accumulation_steps=4)
    ranks = {"gradient_accumulation_steps": 2, "num_processes": 2, "strategy": "ddp"}
    two = start(tmp_path / "two", *inputs, **settings, **ranks)
    assert two.finish() == 0, two.log()
    assert two.series("tokens") == one.series("tokens")
    assert (
        list(two.series("epoch").values())
        == list(one.series("epoch").values())
        == [8 / 21, 16 / 21, 1, 1 + 8 / 21, 1 + 16 / 21, 2]
    )
