"""A signal at every phase of a save: the checkpoint is finished or discarded, never half, and the process is gone."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from stand_in import ROOT
from tiny import make_data, make_model

from training import manifest
from training.events import Finished, decode

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


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    """The folder with a run for each case, and their exit codes."""
    folder = tmp_path_factory.mktemp("signals")
    model, data = make_model(folder / "model"), make_data(folder / "data.jsonl", rows=16)
    argv = [
        sys.executable,
        str(Path(__file__).with_name("signalled_train.py")),
        str(model),
        str(data),
        str(folder),
        json.dumps(CASES),
    ]
    done = subprocess.run(argv, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("case", TOLD)
def test_a_run_that_is_told_to_end_during_a_save_ends_well_with_nothing_half_saved(
    ended: tuple[Path, dict[str, int]], case: str
) -> None:
    run_dir, code = ended[0] / case, ended[1][case]
    assert ((run_dir / "signalled").exists(), code) == (True, 0), (run_dir / "output.log").read_text()
    newest, rejected = manifest.newest_checkpoint(run_dir)
    assert newest is not None
    assert (rejected, manifest.unsealed(run_dir)) == ([], [])
    last = finished(run_dir)
    asked_in_time = CASES[case][1] in CHECKPOINT
    assert last.outcome == ("stopped" if asked_in_time else "finished")
    assert manifest.step_of(newest) == last.step
    assert has_whole_result(run_dir) != asked_in_time


@pytest.mark.parametrize("case", KILLED)
def test_a_run_that_is_killed_during_a_save_keeps_a_whole_checkpoint_and_no_half_result(
    ended: tuple[Path, dict[str, int]], case: str
) -> None:
    run_dir, code = ended[0] / case, ended[1][case]
    assert code == -9, (run_dir / "output.log").read_text()
    newest, _ = manifest.newest_checkpoint(run_dir)
    assert newest is not None and manifest.fault(newest) == ""
    assert (run_dir / "adapter").exists() == has_whole_result(run_dir)


def finished(run_dir: Path) -> Finished:
    events = [decode(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines()]
    assert isinstance(events[-1], Finished)
    return events[-1]


def has_whole_result(run_dir: Path) -> bool:
    """Whether the adapter is there, with weights that can be read."""
    if not (run_dir / "adapter").exists():
        return False
    with safe_open(run_dir / "adapter" / "adapter_model.safetensors", "pt") as weights:
        return len([weights.get_tensor(name) for name in weights.keys()]) > 0  # noqa: SIM118
