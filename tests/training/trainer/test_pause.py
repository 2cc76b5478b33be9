"""A run of a sweep pauses at a step and continues later as if it had not paused."""

from pathlib import Path

import pytest
from tiny import make_data, make_model
from trainer_process import train_here

from training.run_folder.events import PAUSED, Finished
from training.run_folder.paths import PAUSE_VARIABLE

pytestmark = pytest.mark.train
SETTINGS = {"max_steps": 6, "eval_steps": 3, "lora_dropout": 0.1, "load_best_at_end": True}


def test_a_paused_run_evaluates_saves_and_continues_with_the_schedule_of_the_full_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = make_model(tmp_path / "model"), make_data(tmp_path / "rows.jsonl")
    whole = train_here(tmp_path / "whole", *inputs, **SETTINGS)
    monkeypatch.setenv(PAUSE_VARIABLE, "2")
    paused = train_here(tmp_path / "run", *inputs, **SETTINGS)
    [end] = paused.of(Finished)
    assert (end.outcome, end.step, list(paused.evaluations())) == (PAUSED, 2, [2])
    again = train_here(tmp_path / "run", *inputs, **SETTINGS)  # lost before its sweep decided: pauses again at once
    assert [(done.outcome, done.step) for done in again.of(Finished)] == [(PAUSED, 2)] * 2
    monkeypatch.setenv(PAUSE_VARIABLE, "60")
    resumed = train_here(tmp_path / "run", *inputs, **SETTINGS)
    assert resumed.of(Finished)[-1].outcome == "finished"
    for name in ("loss", "learning_rate"):
        assert resumed.series(name) == pytest.approx(whole.series(name), rel=1e-5)
