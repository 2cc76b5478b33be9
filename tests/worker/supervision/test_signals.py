"""A signal at each phase of a save: the checkpoint is complete or deleted, and the process ends."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import patience
import pytest
from paths import PROGRAMS, ROOT
from safetensors import safe_open
from tiny import make_data, make_model

from training.run_folder import checkpoints as manifest
from training.run_folder.events import Finished, RankLeft, decode
from training.run_folder.paths import checkpoint_step
from training.run_folder.stages import Saved

pytestmark = pytest.mark.train

CHECKPOINT = [
    "os.mkdir checkpoints/checkpoint-2",
    "open checkpoints/checkpoint-2/adapter_config.json w",
    "open checkpoints/checkpoint-2/trainer_state.json w",
    "open checkpoints/checkpoint-2/optimizer.pt r",
    "open checkpoints/checkpoint-2/.manifest.json.tmp w",
    "os.rename checkpoints/checkpoint-2/.manifest.json.tmp",
    "open checkpoints/checkpoint-2 None",
    "os.remove checkpoints/checkpoint-1/manifest.json",
    "shutil.rmtree checkpoints/checkpoint-1",
]
RESULT = [
    "os.mkdir adapter.partial",
    "open adapter.partial/adapter_config.json w",
    "os.rename adapter.partial",
    "open lineage.json",
]
TOLD = {f"SIGTERM at {place.replace('/', '|')}": ("SIGTERM", place) for place in CHECKPOINT + RESULT}
KILLED = {
    f"SIGKILL at {place.replace('/', '|')}": ("SIGKILL", place)
    for place in CHECKPOINT[2::2] + CHECKPOINT[5::2] + RESULT[1:3]
}
CASES = TOLD | KILLED
USUAL = [CHECKPOINT[0], CHECKPOINT[4], CHECKPOINT[5], CHECKPOINT[8], RESULT[2]]


def cases(chosen: dict[str, tuple[str, str]]) -> list[Any]:
    """Parameters of a test; those at an unusual place are nightly."""
    return [pytest.param(name, marks=() if CASES[name][1] in USUAL else pytest.mark.nightly) for name in chosen]


@pytest.fixture(scope="module")
def ended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The folder with a run for each selected case, and their exit codes."""
    selected = {case for item in request.session.items for case in CASES if item.name.endswith(f"[{case}]")}
    folder = tmp_path_factory.mktemp("signals")
    model, data = make_model(folder / "model"), make_data(folder / "data.jsonl", rows=16)
    argv = [
        sys.executable,
        str(PROGRAMS / "signalled_train.py"),
        str(model),
        str(data),
        str(folder),
        json.dumps({case: CASES[case] for case in selected}),
    ]
    done = patience.run(argv, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", cases(TOLD))
def test_sigterm_during_a_save_leaves_no_incomplete_files(ended: tuple[Path, dict[str, int]], case: str) -> None:
    run_dir, code = ended[0] / case, ended[1][case]
    assert ((run_dir / "signalled").exists(), code) == (True, 0), (run_dir / "output.log").read_text()
    newest, rejected = manifest.newest_checkpoint(run_dir)
    assert newest is not None
    assert (rejected, manifest.unsealed(run_dir)) == ([], [])
    last = finished(run_dir)
    asked_in_time = CASES[case][1] in CHECKPOINT
    assert last.outcome == "stopped"
    assert has_whole_result(run_dir) != asked_in_time
    if asked_in_time:
        assert checkpoint_step(newest) == last.step
    else:  # the next attempt does the rest
        assert (saved := Saved.read(run_dir)) and saved.outcome == "finished"


@pytest.mark.parametrize("case", cases(KILLED))
def test_sigkill_during_a_save_leaves_a_complete_checkpoint_and_no_incomplete_result(
    ended: tuple[Path, dict[str, int]], case: str
) -> None:
    run_dir, code = ended[0] / case, ended[1][case]
    assert code == -9, (run_dir / "output.log").read_text()
    newest, _ = manifest.newest_checkpoint(run_dir)
    assert newest is not None and manifest.fault(newest) == ""
    assert (run_dir / "adapter").exists() == has_whole_result(run_dir)


def finished(run_dir: Path) -> Finished:
    events = [decode(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines()]
    assert isinstance(events[-2], Finished) and isinstance(events[-1], RankLeft)
    return events[-2]


def has_whole_result(run_dir: Path) -> bool:
    """True if the adapter exists and its weights can be read."""
    if not (run_dir / "adapter").exists():
        return False
    with safe_open(run_dir / "adapter" / "adapter_model.safetensors", "pt") as weights:
        return len([weights.get_tensor(name) for name in weights.keys()]) > 0  # noqa: SIM118
