"""One run on two hosts, each with a worker, a network and a process tree of its own; one of them loses power."""

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fleet
import patience
import pytest
import tiny
from postgres_cluster import Cluster, programs
from sqlmodel import select
from supervised import get

from training.config.run_config import RunConfig
from worker.engines.local import placement
from worker.settings import get_settings
from worker.store import database, history, runs
from worker.store.tables import MachineFailure, Metric, Run, Status

pytestmark = [pytest.mark.train, pytest.mark.slow, pytest.mark.nightly]
STEPS = 120
LEASE_SECONDS = 60  # of real time: a host without a network ends its ranks by its own clock


@pytest.fixture
def network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[fleet.Network]:
    if reason := fleet.missing():
        pytest.skip(reason)
    if (bin_folder := programs()) is None:
        pytest.skip("PostgreSQL's server is not installed (Debian: postgresql)")
    made = fleet.Network()
    cluster = Cluster(bin_folder, made.address, made.namespace)
    variables = {
        "LATHE_DATA_DIR": str(tmp_path / "shared"),
        "LATHE_DATABASE_URL": cluster.url,
        "LATHE_BROKER_URL": f"redis+socket://{tmp_path}/no-broker",  # workers find waiting runs by themselves
        "LATHE_DEVICES": "cpu",
        "LATHE_LEASE_SECONDS": str(LEASE_SECONDS),
        "LATHE_RENEW_SECONDS": "3",
        "OMP_NUM_THREADS": "1",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    get_settings.cache_clear()
    get_settings().make_folders()
    database.migrate()
    for name in ("alpha", "beta"):
        made.add(name, tmp_path, fleet.inherited() | variables | {"LATHE_DATABASE_URL": cluster.network_url})
    yield made
    database.dispose()
    cluster.remove()
    made.remove()
    get_settings.cache_clear()


def eventually(condition: Callable[[], Any]) -> None:
    patience.eventually(condition, quiet=2 * LEASE_SECONDS, every=0.5)


def started(network: fleet.Network, folder: Path, **settings: object) -> str:
    """Starts both hosts and a run on them; returns its id when it has a checkpoint."""
    values = {"num_processes": 2, "num_machines": 2, "max_steps": STEPS, "save_steps": 20, "micro_batch_size": 2}
    config = RunConfig.model_validate(
        {"model": str(tiny.make_model(folder / "model")), "data": str(tiny.make_data(folder / "rows.jsonl"))}
        | {"logging_steps": 1, "eval_split": 0, "answer_rows": 0, "verify_rows": 0}
        | values
        | settings
    )
    for host in network.hosts:
        host.start()
    with database.write() as session:
        run_id = runs.create(session=session, config=config, dataset_id=None, name="two machines").id
    eventually(lambda: get(run_id).step >= 30 or get(run_id).status.ended)
    assert sorted(get(run_id).devices) == ["alpha/cpu", "beta/cpu"], told(run_id)
    return run_id


def other(network: fleet.Network, run_id: str) -> fleet.Host:
    """The host that does not lead the run."""
    leader = get(run_id).devices[0]
    return next(host for host in network.hosts if not leader.startswith(f"{host.name}/"))


def told(run_id: str) -> list[str]:
    with database.read() as session:
        return [event.message for event in history.events(session=session, run_id=run_id)]


def finished(run_id: str) -> Run:
    """Waits for the end; every step was trained, and each is stored once."""
    eventually(lambda: get(run_id).status.ended)
    run = get(run_id)
    assert run.status is Status.FINISHED, told(run_id)
    with database.read() as session:
        where = Metric.run_id == run_id, Metric.name == "loss", Metric.rank == -1
        losses = session.exec(select(Metric).where(*where)).all()
    assert sorted(loss.step for loss in losses) == list(range(1, STEPS + 1))
    assert all(math.isfinite(loss.value) for loss in losses)
    return run


def test_a_run_on_two_machines_continues_on_the_one_that_is_left(network: fleet.Network, tmp_path: Path) -> None:
    run_id = started(network, tmp_path, strategy="zero3", min_machines=1)
    lost = other(network, run_id)
    lost.kill()
    run, events = finished(run_id), told(run_id)
    assert any(f"Lost contact with machine {lost.name}" in message for message in events)
    assert any(message.startswith("Checked 2 nodes") and "slowest pair" in message for message in events)
    with database.read() as session:
        assert session.exec(select(MachineFailure.host)).all() == [lost.name]
    assert run.placed == {
        "num_machines": 1,
        "num_processes": 1,
        "gradient_accumulation_steps": 2 * RunConfig.model_validate(run.config).gradient_accumulation_steps,
        "strategy": "single",
    }


def test_a_run_that_needs_both_machines_waits_until_both_are_back(network: fleet.Network, tmp_path: Path) -> None:
    """The cable of one is pulled: it reaches neither the other machine nor the database."""
    run_id = started(network, tmp_path, strategy="ddp")
    lost = other(network, run_id)
    lost.plug(in_=False)
    eventually(lambda: get(run_id).status is Status.QUEUED)
    with database.read() as session:
        reason = placement.reason_to_wait(session=session, run=get(run_id))
    assert reason.startswith("Waits for 2 machines with 1 free device each")
    eventually(lambda: not lost.ranks())
    lost.plug(in_=True)
    run = finished(run_id)
    assert (run.attempt, run.placed) == (2, {}), told(run_id)
