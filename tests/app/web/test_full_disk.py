"""Where nothing can be written, every request is answered with the cause and the cure, and what was begun leaves no file."""

import errno
import sqlite3
from pathlib import Path

import pytest
from played_run import PlayedRun, model_folder
from small_disk import fill, small_disk
from sqlalchemy.exc import OperationalError
from web import client

from app.errors import is_full, storage_problem
from worker.store import database
from worker.store.tables import Status

ROWS = b"".join(b'{"prompt": "%d", "completion": "b"}\n' % number for number in range(40_000))
PROMPTS = [{"user": "x" * 5000}] * 20
LOG = "Traceback (most recent call last):\nValueError: no\n" * 2000


@pytest.fixture
def disk(tmp_path, request):
    """The installation's disk, of 120 MiB."""
    with small_disk(tmp_path / "home", 120) as folder:
        request.getfixturevalue("home")
        yield folder


@pytest.fixture
def api(disk):
    """A client of an application that stores uploads on the small disk too."""
    api = client()
    usual = api.app.state.uploads
    api.app.state.uploads = disk / "uploads"
    api.app.state.uploads.mkdir(exist_ok=True)
    yield api
    api.app.state.uploads = usual


def files(disk):
    return sorted(
        str(file)
        for file in disk.rglob("*")
        if file.is_file() and not (file.name == ".lock" or file.suffix in (".db", ".db-wal", ".db-shm"))
    )


def writing(model, run_id):
    """Requests that write, with the status where there is room."""
    config = {"model": str(model), "data": "none"}
    return {
        "import": (201, {"method": "POST", "url": "/api/datasets?name=rows.jsonl", "content": ROWS}),
        "check": (200, {"method": "POST", "url": "/api/datasets/check?name=rows.jsonl", "content": ROWS}),
        "form": (201, {"method": "POST", "url": "/api/datasets", "files": {"file": ("more.jsonl", ROWS + ROWS)}}),
        "archive": (422, {"method": "POST", "url": "/api/archives", "content": ROWS}),
        "share": (200, {"method": "POST", "url": "/api/diagnoses?share=true", "content": LOG}),
        "edit": (200, {"method": "PATCH", "url": f"/api/runs/{run_id}", "json": {"notes": "x" * 20_000}}),
        "prompts": (201, {"method": "POST", "url": "/api/prompt-sets", "json": {"name": "some", "prompts": PROMPTS}}),
        "submit": (422, {"method": "POST", "url": "/api/runs", "json": config}),
    }  # fmt: skip


@pytest.mark.slow
def test_a_full_disk_is_named_with_the_cure_and_nothing_is_left(api, disk, tmp_path, subtests):
    run = PlayedRun("kept").claim()
    run.end(Status.STOPPED)
    requests = writing(model_folder(tmp_path / "model"), run.id)
    filler, statuses = fill(disk), {}
    before = files(disk)
    for name, (_, request) in requests.items():
        with subtests.test(name):
            answer = api.request(**request)
            statuses[name] = answer.status_code
            if answer.status_code == 507:
                told = answer.json()["error"]
                assert (told["field"], told["value"]) == ("disk", str(disk)), answer.text
                assert told["message"].startswith("is full: ") and "lathe system --free KIND" in told["fix"]
            assert files(disk) == before
    assert statuses == {"submit": 422} | dict.fromkeys(list(requests)[:-1], 507)
    assert api.get("/api/runs").status_code == 200
    filler.unlink()
    for name, (status, request) in requests.items():
        with subtests.test(f"{name} afterwards"):
            answer = api.request(**request)
            assert answer.status_code == status, answer.text[:500]


@pytest.mark.slow
def test_a_damaged_database_is_named_with_the_cure(home):
    api = client()
    PlayedRun("lost").claim()
    file = Path(database.engine().url.database)
    database.dispose()
    with file.open("r+b") as stream:
        stream.seek(4096)
        stream.write(bytes(range(256)) * 200)
    answer = api.get("/api/runs")
    assert (answer.status_code, answer.json()["error"]["field"]) == (503, "database")
    assert "damaged" in answer.json()["error"]["message"] and "backup" in answer.json()["error"]["fix"]


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (OSError(errno.EROFS, "Read-only file system", "/data/runs/some/file"), "file"),
        (PermissionError(errno.EACCES, "Permission denied", "/data/uploads/file"), "file"),
        (OperationalError("INSERT", {}, sqlite3.OperationalError("attempt to write a readonly database")), "database"),
        (OperationalError("INSERT", {}, sqlite3.OperationalError("database is locked")), "database"),
    ],
)
def test_what_cannot_be_written_to_is_named_with_the_cure(home, error, field):
    problem = storage_problem(error)
    assert problem.field == field and problem.fix and not is_full(problem)


def test_a_bug_is_no_problem_of_the_disk(home):
    assert storage_problem(ValueError("no")) is None
    assert storage_problem(FileNotFoundError(errno.ENOENT, "No such file", "/none")) is None
