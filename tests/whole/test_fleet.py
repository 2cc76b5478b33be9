"""One run on two hosts, each with a worker, a network and a process tree of its own; one of them loses power."""

import math
from collections.abc import Iterator
from pathlib import Path

import fleet
import pytest
import tiny
from postgres_cluster import Cluster, programs
from sqlmodel import select
from supervised import eventually, get

from training.config.run_config import RunConfig
from worker.settings import get_settings
from worker.store import database, history, runs
from worker.store.tables import MachineFailure, Metric, Status

pytestmark = [pytest.mark.train, pytest.mark.slow]


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fleet.Network]:
    if reason := fleet.missing():
        pytest.skip(reason)
    if (bin_folder := programs()) is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: postgresql)")
    cluster = Cluster(bin_folder)
    variables = {
        "LATHE_DATA_DIR": str(tmp_path / "shared"),
        "LATHE_DATABASE_URL": cluster.url,
        "LATHE_BROKER_URL": f"redis+socket://{tmp_path}/no-broker",  # workers find waiting runs by themselves
        "LATHE_DEVICES": "cpu",
        "LATHE_LEASE_SECONDS": "20",
        "LATHE_RENEW_SECONDS": "4",
        "OMP_NUM_THREADS": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    get_settings().make_folders()
    database.migrate()
    made = fleet.Network(tmp_path, fleet.inherited() | variables)
    yield made
    made.remove()
    database.dispose()
    cluster.remove()
    get_settings.cache_clear()


def test_a_run_on_two_machines_continues_on_the_one_that_is_left(network: fleet.Network, tmp_path: Path) -> None:
    config = RunConfig(
        model=str(tiny.make_model(tmp_path / "model")),
        data=str(tiny.make_data(tmp_path / "rows.jsonl")),
        strategy="ddp",
        num_processes=2,
        num_machines=2,
        min_machines=1,
        max_steps=400,
        micro_batch_size=2,
        save_steps=100,
        logging_steps=1,
        eval_split=0,
        answer_rows=0,
        verify_rows=0,
    )
    for host in network.hosts:
        host.start()
    with database.write() as session:
        run_id = runs.create(session=session, config=config, dataset_id=None, name="two machines").id
    eventually(lambda: get(run_id).step >= 100, seconds=600)
    first = get(run_id)
    assert sorted(first.devices) == ["alpha/cpu", "beta/cpu"]
    lost = next(host for host in network.hosts if not first.devices[0].startswith(f"{host.name}/"))
    lost.kill()
    eventually(lambda: get(run_id).status.ended, seconds=600)
    run = get(run_id)
    with database.read() as session:
        events = [event.message for event in history.events(session=session, run_id=run_id)]
        failures = session.exec(select(MachineFailure.host)).all()
        losses = session.exec(
            select(Metric).where(Metric.run_id == run_id, Metric.name == "loss", Metric.rank == -1)
        ).all()
    assert run.status is Status.FINISHED, events
    assert any(f"Lost contact with machine {lost.name}" in message for message in events)
    assert any(message.startswith("Checked 2 nodes") and "slowest pair" in message for message in events)
    assert failures == [lost.name]
    assert run.placed == {
        "num_machines": 1,
        "num_processes": 1,
        "gradient_accumulation_steps": 2 * config.gradient_accumulation_steps,
        "strategy": "single",
    }
    assert sorted(loss.step for loss in losses) == list(range(1, 401))
    assert all(math.isfinite(loss.value) for loss in losses)
