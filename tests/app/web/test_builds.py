"""Builds over REST, by the command line of another machine, and on the page: who may start them, progress, failure, download."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from browser import IN_BROWSER, says
from commands import lathe
from environment import use
from forked_server import server
from played_run import SUMMARY, PlayedRun
from prepared import Prepared, copied
from run_files import checkpoint, result
from web import client

from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Build, Status
from worker.store.work import BUILD


def played(status: Status = Status.FINISHED) -> PlayedRun:
    run = PlayedRun("sums").claim()
    run.end(status, summary=SUMMARY if status is Status.FINISHED else None)
    checkpoint(run.id, 2)
    checkpoint(run.id, 4)
    (get_settings().runs_dir / run.id / "config.json").write_text(json.dumps(run.row.config))
    if status is Status.FINISHED:
        result(run.id)
    return run


def claimed(**values: Any) -> None:
    """A worker takes the only build, and reports this of it."""
    with database.write() as session:
        item = BUILD.take(session, Build.status == Status.QUEUED, holder="host:1:1", lease_seconds=60)  # type: ignore[arg-type]
        assert item
        BUILD.renew(session, BUILD.key_of(item), holder="host:1:1", lease_seconds=60, **values)


def ended(status: Status = Status.FINISHED, **values: Any) -> None:
    with database.write() as session:
        ((item, _),) = BUILD.rows(session)
        assert BUILD.finish(session, BUILD.key_of(item), status, **values)


ERROR = {"field": "run", "value": "x", "message": "the disk is full.", "fix": "Free disk space."}


def test_a_build_is_queued_followed_and_downloaded(home: Path) -> None:
    run, api = played(), client()
    builds = f"/api/runs/{run.id}/builds"
    queued = api.post(f"{builds}/gguf-Q8_0")
    assert (queued.status_code, queued.json()["status"], queued.json()["address"]) == (201, "queued", "")
    claimed(phase="writing the GGUF file", done=5, total=20)
    shown = api.get(f"{builds}/gguf-Q8_0").json()
    assert (shown["status"], shown["phase"], shown["done"], shown["total"]) == (
        "running",
        "writing the GGUF file",
        5,
        20,
    )
    assert api.get(builds).json()["builds"] == [shown]
    (get_settings().runs_dir / run.id / "model-Q8_0.gguf").write_bytes(b"eight bits")
    ended(notes="Its context is 512 tokens.")
    done = api.get(f"{builds}/gguf-Q8_0").json()
    assert (done["status"], done["notes"]) == ("finished", "Its context is 512 tokens.")
    assert api.get(done["address"]).content == b"eight bits"
    assert api.post(f"{builds}/gguf-Q8_0/stop").status_code == 409
    assert api.get(f"{builds}/merged").status_code == 404
    assert api.post(f"{builds}/zip").status_code == 422


def test_the_newest_checkpoint_of_a_stopped_run_is_its_first_form(home: Path) -> None:
    run, api = played(Status.STOPPED), client()
    outputs = api.get(f"/api/runs/{run.id}/outputs").json()["outputs"]
    assert [one["name"] for one in outputs][:2] == ["Adapter of checkpoint 4", "Adapter of checkpoint 2"]
    address = f"/api/runs/{run.id}/checkpoint.zip?step=4"
    assert api.get(address).status_code == 404
    assert api.post(f"/api/runs/{run.id}/builds/checkpoint").json()["form"] == "checkpoint-4"
    (get_settings().runs_dir / run.id / "checkpoint-4.zip").write_bytes(b"weights")
    first = api.get(f"/api/runs/{run.id}/outputs").json()["outputs"][0]
    assert (first["form"], first["address"], first["build"]["status"]) == ("checkpoint-4", address, "queued")
    assert api.get(address).content == b"weights"


def test_the_builds_of_a_run_end_when_it_is_resumed(home: Path) -> None:
    run, api = played(Status.STOPPED), client()
    for form in ("checkpoint-2", "checkpoint-4"):
        api.post(f"/api/runs/{run.id}/builds/{form}")
        claimed()
    with database.write() as session:
        build = BUILD.rows(session)[0][0]
        assert BUILD.finish(session, BUILD.key_of(build), Status.FINISHED)
        runs.resume(session=session, run_id=run.id)
    assert api.get(f"/api/runs/{run.id}/builds").json() == {"builds": []}
    with database.write() as session:
        assert BUILD.rows(session) == []  # so its holder stops, and none takes it over


@pytest.fixture
def prepared(bare_home: Path) -> Prepared:
    return copied(bare_home)


def test_only_who_may_change_a_run_builds_its_forms(prepared: Prepared) -> None:
    api, path = client(), f"/api/runs/{prepared.finished}/builds/merged"
    bob, carol = ({"Authorization": f"Bearer {prepared.tokens[name]}"} for name in ("bob", "carol"))
    assert api.post(path, headers=bob).status_code == 403
    assert api.get(f"/api/runs/{prepared.finished}/builds", headers=bob).json() == {"builds": []}
    with database.write() as session:
        session.add(Build(id="b", run_id=prepared.finished, form="merged", owner="carol", created_at=1.0))
    assert api.post(f"{path}/stop", headers=bob).status_code == 403
    assert api.post(f"{path}/stop", headers=carol).json()["status"] == "stopped"


@pytest.mark.slow
def test_the_command_lets_a_server_build_what_it_does_not_have(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = played()

    def worker(_seconds: float) -> None:
        claimed(phase="merging the adapter")
        (get_settings().runs_dir / run.id / "merged.zip").write_bytes(b"whole")
        ended(notes="A note.")

    def failing(_seconds: float) -> None:
        claimed()
        ended(Status.FAILED, error=ERROR)

    monkeypatch.setattr("app.cli.runs.export.time", SimpleNamespace(sleep=worker))
    with server(home) as started:
        use(monkeypatch, DATA_DIR=str(home), SERVER=started.address)
        done = lathe("export", run.id, "--merged", "-o", tmp_path / "m.zip")
        monkeypatch.setattr("app.cli.runs.export.time", SimpleNamespace(sleep=failing))
        failed = lathe("export", run.id, "--gguf", "-o", tmp_path / "m.gguf")
    assert done.exit_code == 0, done.output
    assert "A note." in done.stderr
    assert (tmp_path / "m.zip").read_bytes() == b"whole"

    assert failed.exit_code == 1 and "the disk is full. Free disk space." in failed.stderr.replace("\n", " ")


class TestInABrowser:
    pytestmark = IN_BROWSER

    def test_a_merged_model_is_built_by_a_click_with_progress(self, page: Any) -> None:
        run = played()
        page.goto(f"/run?id={run.id}")
        page.get_by_role("button", name="Build Merged model").click()
        says(page, "table.outputs", "Waiting for a worker that has the run's files.")
        claimed(phase="saving the merged model", done=2**20, total=2**22)
        says(page, "table.outputs", "Saving the merged model, 1.0 MiB of 4.0 MiB.")
        assert page.get_by_role("progressbar", name="progress of Merged model").get_attribute("aria-valuenow") == "25"
        (get_settings().runs_dir / run.id / "merged.zip").write_bytes(b"whole")
        ended()
        page.locator(f"a[href='/api/runs/{run.id}/merged.zip']").first.wait_for()

    def test_a_failed_build_says_why_and_begins_again_and_a_waiting_one_is_cancelled(self, page: Any) -> None:
        run = played(Status.STOPPED)
        page.goto(f"/run?id={run.id}")
        page.get_by_role("button", name="Build Adapter of checkpoint 4").click()
        says(page, "table.outputs", "Waiting for a worker")
        claimed()
        ended(Status.FAILED, error=ERROR)
        says(page, "table.outputs", "the disk is full. Free disk space.")
        page.get_by_role("button", name="Build Adapter of checkpoint 4").click()
        page.get_by_role("button", name="Cancel Adapter of checkpoint 4").click()
        page.get_by_role("button", name="Build Adapter of checkpoint 4").wait_for()
        page.get_by_label("Adapter of checkpoint", exact=True).select_option("2")
        page.get_by_role("button", name="Build Adapter of checkpoint 2").wait_for()
