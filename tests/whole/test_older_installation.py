"""Installations of Lathe 0.1.0 and 0.2.0 still work: their runs can be shown, downloaded and resumed, and their work goes on.

tests/installations/0.1.0.tar.gz is a data folder with two runs of the starter model: one finished, one stopped at a checkpoint.
tests/installations/0.2.0.tar.xz is that of an installation killed while one run trained and three waited, two of them in a sweep:
with a finished and a stopped run, a finished and a waiting evaluation, and a served model. It used port 7931 of the host node-1.
"""

import contextlib
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import CHROMIUM, chromium, says
from commands import lathe
from paths import ROOT, TESTS
from patience import ended, eventually
from web import client, server

from worker.engines.local import starting
from worker.settings import get_settings
from worker.store import database, run_list
from worker.store.tables import Run, Status

pytestmark = pytest.mark.slow

INSTALLATIONS = TESTS / "installations"
HOLDS_PATHS = ("run.config", "evaluation.request")


def upgraded(archive: Path, home: Path) -> Path:
    """Unpacks an old data folder, of a program in /srv/lathe with its data in /srv/home, and upgrades its database."""
    home.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive) as files:
        files.extractall(home, filter="data")
    with contextlib.closing(sqlite3.connect(home / "lathe.db")) as old, old:
        tables = {name for (name,) in old.execute("SELECT name FROM sqlite_master")}
        for table, column in (name.split(".") for name in HOLDS_PATHS):
            if table in tables:
                moved = f"replace(replace({column}, '/srv/lathe', '{ROOT}'), '/srv/home', '{home}')"
                old.execute(f"UPDATE {table} SET {column} = {moved}")
    for file in home.glob("runs/*/config.json"):  # what programs that load the run's model read
        file.write_text(file.read_text().replace("/srv/lathe", str(ROOT)).replace("/srv/home", str(home)))
    get_settings().make_folders()
    database.migrate()
    return home


@pytest.fixture
def old_home(bare_home: Path) -> Path:
    return upgraded(INSTALLATIONS / "0.1.0.tar.gz", bare_home)


@pytest.fixture
def busy_home(bare_home: Path) -> Path:
    return upgraded(INSTALLATIONS / "0.2.0.tar.xz", bare_home)


@pytest.mark.parametrize("archive", ["0.1.0.tar.gz", "0.2.0.tar.xz"])
def test_everything_in_an_old_installation_can_be_read(bare_home, archive):
    upgraded(INSTALLATIONS / archive, bare_home)
    api = client()
    addresses = ["/api/runs", "/api/datasets", "/api/sweeps", "/api/system", "/api/queue", "/api/served", "/"]
    for run in api.get("/api/runs").json()["runs"]:
        base = f"/api/runs/{run['id']}"
        addresses += [f"/run?id={run['id']}", base]
        addresses += [
            f"{base}/{part}" for part in ("outputs", "evaluations", "events", "plots", "diagnosis", "config.yaml")
        ]
        evaluations = api.get(f"{base}/evaluations").json()["evaluations"]
        addresses += [f"/api/evaluations/{evaluation['id']}" for evaluation in evaluations]
    for kind, page in (("datasets", "dataset"), ("sweeps", "sweep")):
        for entry in api.get(f"/api/{kind}").json()[kind]:
            addresses += [f"/api/{kind}/{entry['id']}", f"/{page}?id={entry['id']}"]
    answers = {address: api.get(address).status_code for address in addresses}
    refused = {
        address
        for address, status in answers.items()
        if status >= 500 or (status != 200 and "diagnosis" not in address)
    }
    assert refused == set(), answers


def run_named(name: str) -> Run:
    with database.read() as session:
        return next(run for run in run_list.listing(session=session) if run.name == name)


def test_its_runs_are_listed_with_their_results_and_the_adapter_can_be_downloaded(old_home):
    api = client()
    listed = {run["name"]: run for run in api.get("/api/runs").json()["runs"]}
    assert {name: run["status"] for name, run in listed.items()} == {"Finished": "finished", "Stopped": "stopped"}
    finished = listed["Finished"]
    shown = api.get(f"/api/runs/{finished['id']}").json()
    assert shown["summary"]["eval_loss"] > 0
    downloaded = api.get(f"/api/runs/{finished['id']}/adapter.zip")
    assert downloaded.status_code == 200
    weights = zipfile.ZipFile(io.BytesIO(downloaded.content)).read("adapter_model.safetensors")
    assert weights == (old_home / "runs" / finished["id"] / "adapter" / "adapter_model.safetensors").read_bytes()


def test_its_pages_show_its_runs_and_data(old_home):
    runs = client().get("/").text
    assert "Finished" in runs and "Stopped" in runs
    assert "6 of 6" in client().get(f"/run?id={run_named('Finished').id}").text
    assert "rows.jsonl" in client().get("/datasets").text


@pytest.mark.nightly
@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)")
def test_its_pages_open(old_home, request):
    finished = run_named("Finished")
    with server(old_home) as served, chromium(request.config, served.address).page() as page:
        page.goto("/")
        says(page, "table", "Finished", "Stopped")
        page.goto(f"/run?id={finished.id}")
        says(page, "body", "Finished", "6 of 6")
        page.goto("/datasets")
        says(page, "body", "rows.jsonl")


@pytest.mark.nightly
@pytest.mark.train
def test_its_stopped_run_is_resumed_from_its_checkpoint(old_home):
    stopped = run_named("Stopped")
    checkpoint = max(
        int(folder.name.removeprefix("checkpoint-"))
        for folder in (old_home / "runs" / stopped.id / "checkpoints").iterdir()
    )
    resumed = lathe("resume", stopped.id)
    assert resumed.exit_code == 0, resumed.output
    assert [run.id for run in starting.start_waiting()] == [stopped.id]
    eventually(lambda: run_named("Stopped").step > checkpoint)
    assert lathe("stop", stopped.id).exit_code == 0
    ended = eventually(lambda: (run := run_named("Stopped")).status is Status.STOPPED and run)
    assert (ended.attempt, ended.error) == (2, None)
    records = [json.loads(line) for line in (old_home / "runs" / stopped.id / "events.jsonl").read_text().splitlines()]
    assert [record["start_step"] for record in records if "start_step" in record] == [0, checkpoint]
    steps = [record["step"] for record in records if "loss" in record.get("values", {})]
    assert steps == list(range(1, ended.step + 1))  # no step is lost or repeated


def test_an_installation_of_0_2_0_shows_all_that_it_was_doing(busy_home):
    api = client()
    runs = {run["name"]: run for run in api.get("/api/runs").json()["runs"]}
    assert {name: run["status"] for name, run in runs.items()} == {
        "Finished": "finished",
        "Stopped": "stopped",
        "Running": "running",
        "Waiting": "queued",
        "Rates · lr=0.001": "queued",
        "Rates · lr=0.003": "queued",
    }
    evaluations = api.get(f"/api/runs/{runs['Finished']['id']}/evaluations").json()["evaluations"]
    assert sorted(evaluation["status"] for evaluation in evaluations) == ["finished", "queued"]
    (sweep,) = api.get("/api/sweeps").json()["sweeps"]
    assert (sweep["name"], sweep["statuses"]) == ("Rates", {"queued": 2})
    assert api.get("/api/served").json()["served"]["models"] == [
        f"{runs['Finished']['id']}:base",
        runs["Finished"]["id"],
    ]
    assert "208 of 5,000" in client().get(f"/run?id={runs['Running']['id']}").text


@contextlib.contextmanager
def lathe_up(home: Path) -> Iterator[None]:
    environment = os.environ | {"LATHE_PORT": "0", "LATHE_DEVICES": "cpu", "PYTHONPATH": str(ROOT)}
    with (home / "up.log").open("wb") as output:
        command = [sys.executable, "-m", "app.cli.__main__", "up"]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            yield
            process.send_signal(signal.SIGINT)
            assert ended(process) == 0, (home / "up.log").read_text()
        finally:
            process.kill()
            process.wait()


@pytest.mark.nightly
@pytest.mark.train
def test_all_that_an_installation_of_0_2_0_was_doing_goes_on(busy_home):
    def statuses(*names: str) -> set[Status]:
        return {run_named(name).status for name in names}

    with lathe_up(busy_home):
        eventually(lambda: run_named("Running").attempt == 2 and run_named("Running").step > 210)
        assert lathe("stop", run_named("Running").id).exit_code == 0
        finished = ("Waiting", "Rates · lr=0.001", "Rates · lr=0.003")
        eventually(lambda: statuses(*finished) == {Status.FINISHED} and statuses("Running") == {Status.STOPPED})
        api = client()
        evaluations = f"/api/runs/{run_named('Finished').id}/evaluations"
        eventually(
            lambda: {evaluation["status"] for evaluation in api.get(evaluations).json()["evaluations"]} == {"finished"}
        )
        eventually(lambda: (api.get("/api/served").json()["served"] or {"state": "ended"})["state"] == "ended")
    running = run_named("Running")
    records = [json.loads(line) for line in (busy_home / "runs" / running.id / "events.jsonl").read_text().splitlines()]
    assert [record["start_step"] for record in records if "start_step" in record] == [0, 208]
