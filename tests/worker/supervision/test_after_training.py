"""The real training program on several ranks: those that have left are not missed while rank 0 does the rest."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from paths import PROGRAMS
from patience import ended, eventually
from supervised import get, living
from tiny import make_data, make_model
from warm import PYTHONPATH

from training.config.run_config import RunConfig
from worker.machine.process_identity import me
from worker.settings import get_settings
from worker.store import claims, database, runs
from worker.store.tables import Status

nightly = pytest.mark.nightly
pytestmark = [pytest.mark.train, pytest.mark.usefixtures("home")]


@pytest.mark.parametrize(
    ("strategy", "ranks"),
    [
        ("ddp", 2),
        *(pytest.param(strategy, 2, marks=nightly) for strategy in ("zero3", "fsdp")),
        *(pytest.param(strategy, 4, marks=nightly) for strategy in ("ddp", "zero3", "fsdp")),
    ],
)
def test_ranks_that_left_are_not_missed(tmp_path: Path, strategy: str, ranks: int) -> None:
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl", rows=24)
    settings = {"max_steps": 2, "micro_batch_size": 1, "save_steps": 0, "verify_rows": 2, "max_new_tokens": 4}
    config = RunConfig(model=str(model), data=str(data), strategy=strategy, num_processes=ranks, **settings)
    device, lease = f"{me().host}/cpu", get_settings().lease_seconds
    with database.write() as session:
        run_id = runs.create(session=session, config=config, dataset_id=None, name="a run").id
        claims.claim(session=session, run_id=run_id, owner=str(me()), devices=[device], lease_seconds=lease)
    folder = get_settings().runs_dir / run_id
    folder.mkdir()
    argv = [sys.executable, str(PROGRAMS / "slow_rest_train.py"), "supervise", run_id, "1"]
    supervisor = subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": PYTHONPATH})

    def ranks_left() -> list[int]:
        return [
            one.pid for one in living(run_id) if "slow_rest_train.py" in one.cmdline()[-2] and "RANK" in one.environ()
        ]

    eventually(lambda: get(run_id).phase == "saving" and len(ranks_left()) == 1, [supervisor])
    renewed = get(run_id).expires_at
    eventually(lambda: (get(run_id).expires_at or 0) > (renewed or 0), [supervisor])  # it has looked
    (folder / "go").touch()
    assert ended(supervisor) == 0
    run = get(run_id)
    assert (run.status, run.attempt, run.undone) == (Status.FINISHED, 1, {})
    assert run.summary["parity"]["equal"]
    assert "Lathe sent" not in (folder / "output.log").read_text()
