"""An installation of Lathe 0.1.0 still works: its runs can be shown, downloaded and resumed.

tests/installations/0.1.0.tar.gz is a data folder with two runs of the starter model: one finished, one stopped at a checkpoint.
"""

import io
import json
import tarfile
import zipfile
from pathlib import Path

import pytest
from browser import CHROMIUM, chromium, says
from commands import lathe
from paths import ROOT, TESTS
from patience import eventually
from web import client, server

from worker.engines.local import starting
from worker.settings import get_settings
from worker.store import database
from worker.store.listed import run_list
from worker.store.tables import Run, Status

pytestmark = pytest.mark.slow

ARCHIVE = TESTS / "installations" / "0.1.0.tar.gz"


@pytest.fixture
def old_home(bare_home: Path) -> Path:
    """The old data folder, with its database upgraded. Its runs used the starter model of a checkout in /srv/lathe."""
    bare_home.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(bare_home, filter="data")
    get_settings().make_folders()
    database.migrate()
    with database.write() as session:
        for run in run_list.listing(session=session):
            run.config = run.config | {"model": run.config["model"].replace("/srv/lathe", str(ROOT))}
            session.add(run)
    return bare_home


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
