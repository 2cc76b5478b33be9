"""A run resumes with another strategy or number of processes, and its losses continue as if nothing had changed."""

from pathlib import Path
from typing import Any

import pytest
from tiny import make_data, make_model
from trainer_process import Trained, start, train_here

from training.config.choices import Strategy
from training.run_folder.checkpoint_layout import CheckpointLayout
from training.run_folder.events import Failed, Resumed
from training.run_folder.paths import PAUSE_VARIABLE, checkpoint_dir

pytestmark = pytest.mark.train

SETTINGS: dict[str, Any] = {
    "max_steps": 6,
    "save_steps": 0,
    "eval_steps": 0,
    "eval_split": 0,
    "precision": "fp32",
    "lr_scheduler": "cosine",
    "weight_decay": 0.1,
}
GLOBAL_BATCH = 4


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and so few rows that the second part of a run begins a new epoch."""
    folder = tmp_path_factory.mktemp("inputs")
    return make_model(folder / "model"), make_data(folder / "data.jsonl", rows=20)


def train(folder: Path, inputs: tuple[Path, Path], strategy: str, ranks: int, **settings: Any) -> Trained:
    split = {"strategy": strategy, "num_processes": ranks, "micro_batch_size": GLOBAL_BATCH // ranks}
    run = start(folder, *inputs, **(SETTINGS | split | settings))
    run.finish()
    return run


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, inputs: tuple[Path, Path]) -> dict[str, dict[int, float]]:
    """The losses of runs of each method on one device."""
    settings = SETTINGS | {"micro_batch_size": GLOBAL_BATCH}
    runs = {
        method: train_here(tmp_path_factory.mktemp(method), *inputs, **settings, method=method)
        for method in ("full", "lora")
    }
    for run in runs.values():
        assert list(run.losses()) == [1, 2, 3, 4, 5, 6]
    return {method: run.losses() for method, run in runs.items()}


@pytest.mark.parametrize(
    ("method", "before", "after"),
    [
        ("full", ("zero3", 4), ("zero3", 2)),
        ("full", ("fsdp", 2), ("single", 1)),
        ("lora", ("zero2", 2), ("fsdp", 2)),
        ("lora", ("ddp", 2), ("zero1", 2)),
    ],
    ids=lambda value: " x ".join(map(str, value)) if isinstance(value, tuple) else value,
)
def test_a_resumed_run_with_other_processes_continues_the_losses(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inputs: tuple[Path, Path],
    undisturbed: dict[str, dict[int, float]],
    method: str,
    before: tuple[str, int],
    after: tuple[str, int],
) -> None:
    with monkeypatch.context() as paused:
        paused.setenv(PAUSE_VARIABLE, "3")
        first = train(tmp_path, inputs, *before, method=method)
    assert list(first.losses()) == [1, 2, 3], first.log()
    layout = CheckpointLayout.read(checkpoint_dir(tmp_path, 3))
    assert layout is not None and (layout.strategy, layout.world_size) == (Strategy(before[0]), before[1])
    second = train(tmp_path, inputs, *after, method=method)
    assert [event.step for event in second.of(Resumed)] == [3], second.log()
    assert second.process and second.process.poll() == 0, second.log()
    assert first.losses() | second.losses() == pytest.approx(undisturbed[method], rel=1e-4)


def test_another_global_batch_size_is_refused_with_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: tuple[Path, Path]
) -> None:
    with monkeypatch.context() as paused:
        paused.setenv(PAUSE_VARIABLE, "1")
        train(tmp_path, inputs, "single", 1)
    second = train(tmp_path, inputs, "ddp", 2, micro_batch_size=1)
    (failed,) = {event.message: event for event in second.of(Failed)}.values()
    assert failed.expected and "would change the global batch size from 4 to 2 rows" in failed.message
    assert failed.fix == "Set it to 2."
