"""Real training on two nodes of a real Slurm cluster."""

from pathlib import Path

import pytest
from slurm import Installation, cluster, slurm
from tiny import make_data, make_model
from trainer_process import SMALL, start

from benchmarks.chaos.findings import losses
from training.config.run_config import RunConfig
from worker.engines.slurm import jobs
from worker.runs.submit import submit
from worker.store import database as db
from worker.store import history, series
from worker.store.tables import Status

__all__ = ["cluster", "slurm"]
pytestmark = [pytest.mark.slow, pytest.mark.train, pytest.mark.nightly]


def test_zero_2_on_two_nodes_has_the_losses_of_one_machine(
    slurm: Installation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "supervisor_program", "worker.engines.job_side.supervisor")
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "data.jsonl")
    settings = SMALL | {"strategy": "zero2", "num_processes": 2, "micro_batch_size": 2}
    alone = start(tmp_path / "alone", model, data, **settings)

    config = RunConfig.model_validate({"model": str(model), "data": str(data), "num_machines": 2} | settings)
    run_id = submit(config).id
    run = slurm.until(run_id, lambda run: run.plan)
    assert run.plan
    assert (run.plan["engine"], run.plan["zero_stage"], run.plan["world_size"]) == ("DeepSpeedEngine", 2, 2)
    slurm.until_end(run_id)
    assert slurm.get(run_id).status is Status.FINISHED, (slurm.get(run_id).error, slurm.told(run_id))

    assert "Checked 2 nodes" in str(slurm.told(run_id))
    assert alone.finish() == 0, alone.log()
    assert losses(run_id) == pytest.approx(alone.losses(), rel=1e-6)
    with db.read() as session:
        memory = {rank for name, rank in series.latest(session=session, run_id=run_id) if name == "host_rss"}
        printed = [line.text for line in history.log_tail(session=session, run_id=run_id)]
    assert memory == {0, 1}, "the rank on the second node reports too"
    assert any("train_loss" in line for line in printed)
