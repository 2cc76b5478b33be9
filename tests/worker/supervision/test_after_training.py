"""The real training program on several ranks: rank 0 does what follows the training alone, whatever the others do."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from environment import use
from paths import PROGRAMS
from patience import ended, eventually
from programs.slow_rest_train import FROZEN, LEFT, SLOW, go_file
from supervised import get, living
from tiny import make_data, make_model
from warm import PYTHONPATH

from tests.stand_in_hub import receive
from training.config.run_config import RunConfig
from training.run_folder.stages import STAGES
from worker.machine.process_identity import me
from worker.settings import get_settings
from worker.store import claims, database, history, runs
from worker.store.tables import Run, Status

PHASES = [stage.phase for stage in STAGES]
NEEDS_ALL = {
    "max_steps": 2, "micro_batch_size": 1, "save_steps": 0, "eval_split": 4, "eval_steps": 0, "verify_rows": 2, "answer_rows": 1,
    "max_new_tokens": 4, "merge_adapter": True, "push_to_hub": "owner/model",
}  # fmt: skip
"""A run with these settings has every stage."""

nightly = pytest.mark.nightly
pytestmark = pytest.mark.train


class Attempts:
    """The attempts of one run, whose stages wait for the test."""

    def __init__(self, tmp_path: Path, strategy: str, ranks: int) -> None:
        model, data = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl", rows=24)
        inputs = {"model": str(model), "data": str(data), "strategy": strategy, "num_processes": ranks}
        with database.write() as session:
            config = RunConfig.model_validate(NEEDS_ALL | inputs)
            self.id = runs.create(session=session, config=config, dataset_id=None, name="a run").id
        self.folder = get_settings().runs_dir / self.id
        self.folder.mkdir()
        self.supervisor: subprocess.Popen[bytes] | None = None

    def start(self, others: str) -> None:
        """Starts the next attempt; `others` is what the other ranks do after the training."""
        device, lease = f"{me().host}/cpu", get_settings().lease_seconds
        with database.write() as session:
            run = claims.claim(session=session, run_id=self.id, owner=str(me()), devices=[device], lease_seconds=lease)
        assert run is not None
        argv = [sys.executable, str(PROGRAMS / "slow_rest_train.py"), "supervise", run.id, str(run.attempt), others]
        self.supervisor = subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": PYTHONPATH})

    def until(self, condition: Any) -> Any:
        assert self.supervisor is not None
        return eventually(condition, [self.supervisor])

    @property
    def run(self) -> Run:
        return get(self.id)

    def others(self) -> list[psutil.Process]:
        """The processes of the ranks other than 0."""
        ranks = [one for one in living(self.id) if "slow_rest_train.py" in one.cmdline()[-2]]
        return [one for one in ranks if one.environ().get("RANK", "0") != "0"]

    def is_in(self, phase: str) -> None:
        """Waits until rank 0 is in the stage, and the supervisor has looked twice since."""
        self.until(lambda: self.run.phase == phase)
        for _ in range(2):
            renewed = self.run.expires_at or 0
            self.until(lambda before=renewed: (self.run.expires_at or 0) > before)

    def go(self, phase: str) -> None:
        go_file(self.folder, phase).touch()

    def end(self) -> Run:
        assert self.supervisor is not None
        assert ended(self.supervisor) == 0
        return self.run

    def told(self) -> str:
        with database.read() as session:
            return "\n".join(event.message for event in history.events(session=session, run_id=self.id))

    @property
    def log(self) -> str:
        return (self.folder / "output.log").read_text()


@pytest.fixture
def hub(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with receive() as (address, received):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        use(monkeypatch, DATA_DIR=str(home), HUB_TOKEN="hf_good", RENEW_SECONDS="0.5", MAX_ATTEMPTS="9")
        yield received


def whole(run: Run, hub: Any, folder: Path) -> None:
    """The run has finished, and each stage was done."""
    assert (run.status, run.undone, run.error) == (Status.FINISHED, {}, None)
    assert run.summary and run.summary["parity"]["equal"] and run.summary["answers"]
    assert (folder / "merged" / "model.safetensors").is_file()
    name = "adapter_model.safetensors"
    assert hub.files[name] == (folder / "adapter" / name).read_bytes()


@pytest.mark.parametrize(
    ("strategy", "ranks", "others"),
    [
        ("ddp", 2, LEFT),
        *(pytest.param(strategy, 2, LEFT, marks=nightly) for strategy in ("zero3", "fsdp")),
        *(pytest.param(strategy, 4, LEFT, marks=nightly) for strategy in ("ddp", "zero3", "fsdp")),
        *(pytest.param(strategy, 2, FROZEN, marks=nightly) for strategy in ("ddp", "zero3", "fsdp")),
        *(pytest.param(strategy, 4, FROZEN, marks=nightly) for strategy in ("zero3", "fsdp")),
    ],
)
def test_rank_0_needs_no_other_in_any_stage(tmp_path: Path, hub: Any, strategy: str, ranks: int, others: str) -> None:
    attempt = Attempts(tmp_path, strategy, ranks)
    attempt.start(others)
    for phase in PHASES:
        attempt.is_in(phase)
        left = [one.status() for one in attempt.others()]
        assert left == ([] if others == LEFT else [psutil.STATUS_STOPPED] * (ranks - 1))
        attempt.go(phase)
    run = attempt.end()
    assert run.attempt == 1
    whole(run, hub, attempt.folder)
    signals = [line for line in attempt.log.splitlines() if "Lathe sent" in line]
    assert all("did not exit after it had reported its end" in line for line in signals)
    assert not living(run.id)


@nightly
@pytest.mark.parametrize(("strategy", "ranks"), [("ddp", 4), ("zero3", 2), ("fsdp", 2)])
def test_a_rank_that_is_killed_in_a_stage_costs_no_training_and_no_stage(
    tmp_path: Path, hub: Any, strategy: str, ranks: int
) -> None:
    attempt = Attempts(tmp_path, strategy, ranks)
    for number, phase in enumerate(PHASES, 1):
        attempt.start(SLOW)
        attempt.is_in(phase)
        victims = attempt.others()
        assert len(victims) == ranks - 1
        victims[-1].kill()
        run = attempt.end()
        assert (run.status, run.attempt) == (Status.QUEUED, number), attempt.told()
        attempt.go(phase)  # for the next attempt, which comes as far as the next stage
    attempt.start(LEFT)
    run = attempt.end()
    whole(run, hub, attempt.folder)
    assert attempt.log.count("'train_loss'") == 1
    assert not living(run.id)
