"""`lathe system`: the installation as text and JSON, and freeing disk space."""

import pytest
from commands import answer, lathe
from machines import GIB, gpu, machine, seen_ago
from played_run import PlayedRun
from run_files import checkpoint, result, steps_of

from worker.disk import usage
from worker.store import database as db
from worker.store import machines


@pytest.fixture(autouse=True)
def no_models(tmp_path, monkeypatch):
    monkeypatch.setattr(usage, "model_caches", lambda: [tmp_path / "models"])


def finished():
    played = PlayedRun("sums").claim()
    checkpoint(played.id, 10)
    result(played.id)
    return played.end()


def test_without_a_worker_the_command_to_start_one_is_shown(database):
    text = lathe("system").stdout
    assert "No worker has reported. Start one with `lathe worker`" in text
    assert "Broker" in text
    assert "unreachable" in text


def test_devices_are_shown_with_the_run_that_holds_them(database):
    machine("node1", devices=[gpu("node1", 0, memory_used_bytes=61 * GIB, utilization=0.98), gpu("node1", 1)])
    machine("node2", overload="load average of 30 per core")
    machine("node3")
    seen_ago("node3", 180)
    run = PlayedRun("alpaca").claim("node1/cuda:0")
    text = lathe("system").stdout
    assert "2 machines, 1 of 3 devices in use, 1 running, 0 queued" in text
    assert f"alpaca ({run.id})" in next(line for line in text.splitlines() if "node1/cuda:0" in line)
    assert "61.0 of 80.0 GiB" in text
    assert "98%" in text
    assert "starts no runs (load average of 30 per core)" in text
    assert "no contact" in next(line for line in text.splitlines() if line.startswith("  node3 "))


def test_accounts_are_listed_with_what_they_use(database):
    assert answer("system")["accounts"] == [] and "Accounts" not in lathe("system").stdout
    lathe("user", "add", "alice", "--max-devices", "2", "--max-waiting", "20", "--max-disk", "200GB")
    (listed,) = answer("system")["accounts"]
    use = {"name": "alice", "devices": 0, "max_devices": 2, "waiting": 0, "max_waiting": 20}
    assert listed == use | {"disk_bytes": 0, "max_disk_bytes": 200 * 10**9}
    assert "  alice    0 of 2   0 of 20  0 of 186 GiB" in lathe("system").stdout


def test_a_machine_that_was_put_aside_is_listed_and_taken_back(database):
    with db.write() as session:
        machines.cordon(session=session, host="node1", reason="Lost contact with node1 for 150 s.")
    text = lathe("system").stdout
    assert "Lost contact with node1 for 150 s." in text and "lathe machines use NAME" in text
    assert lathe("machines", "use", "node1").stdout == "Runs on several machines use node1 again.\n"
    assert "Put aside" not in lathe("system").stdout


def test_json_has_machines_disk_queue_and_services(database):
    machine("node1")
    PlayedRun("first")
    run = finished()
    document = answer("system")
    assert [one["state"] for one in document["machines"]] == ["ready"]
    assert document["queue"]["waiting"] == 1
    assert document["queue"]["oldest"]["name"] == "first"
    assert document["disk"]["kinds"]["results"] == {"bytes": 500, "files": 1}
    assert document["disk"]["largest_runs"][0]["id"] == run.id
    assert document["database"]["latency_ms"] >= 0
    assert document["database"]["kind"] == {"sqlite": "SQLite", "postgresql": "PostgreSQL"}[database]
    assert (document["broker"]["reachable"], "lathe up" in document["broker"]["fix"]) == (False, True)
    torch = next(one for one in document["versions"] if one["package"] == "torch")
    assert torch["workers"] == ["2.13.0"]


def test_a_lease_shows_its_renewal_and_its_end(database):
    machine("host", devices=[gpu("host", 0)])
    PlayedRun("mine").claim("host/cuda:0")
    document = answer("system")
    lease = document["machines"][0]["devices"][0]["lease"]
    assert lease["name"] == "mine"
    assert lease["renewed_at"] < document["time"] < lease["expires_at"]


def test_a_device_that_no_machine_reports_is_listed(database):
    PlayedRun("mine").claim("gone/cuda:3")
    assert [lease["device"] for lease in answer("system")["other_leases"]] == ["gone/cuda:3"]


def test_disk_space_is_freed_after_a_confirmation(database):
    run = finished()
    assert lathe("system", "--free", "finished_checkpoints").exit_code == 1  # nobody answers
    assert steps_of(run.id) == [10]
    done = lathe("system", "--free", "finished_checkpoints", "--yes")
    assert (done.exit_code, steps_of(run.id)) == (0, [])
    assert "in 2 files." in done.stdout
