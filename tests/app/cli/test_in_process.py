"""Commands without a server call the routes in their own process: which routes, what they raise, and how answers are read."""

import json
import signal
import subprocess
import sys
import threading

import pytest
from commands import answer, lathe
from patience import eventually
from prepared import prepared_installation  # noqa: F401
from subtest_table import table

from app.cli import in_process
from app.cli.client import ServerError, connect, path_of
from app.web.rest.application import ROUTERS, modules, router
from training.errors import UserError
from worker.store.runs import RunNotFound


@table("module", ROUTERS)
def test_a_path_names_the_module_of_its_route(module):
    assert [route.path for route in router(module).routes if module not in modules(route.path)] == []


def test_no_module_with_routes_imports_gradio():
    program = f"import sys; from importlib import import_module as load; [load(name) for name in {list(ROUTERS)}]"
    done = subprocess.run(
        [sys.executable, "-c", f"{program}; sys.exit('gradio' in sys.modules)"], capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_what_a_route_raises_keeps_its_class(home):
    with pytest.raises(RunNotFound) as raised:
        connect().get(path_of("runs", "zzzz?"))
    assert raised.value.problem.value == "zzzz?"


@table("name", ["", "..", "a/b", "../queue", "\udcff"])
def test_what_cannot_be_an_id_is_no_other_path(home, name):
    for command in (["show", name], ["stop", name], ["sweep", "show", name], ["dataset", "show", name]):
        assert "does not exist" in answer(*command, exit_code=1)["error"][0]["message"]


def test_a_malformed_value_is_a_user_error(home):
    with pytest.raises(ServerError) as raised:
        connect().get("/api/runs", limit=-1)
    assert (raised.value.problem.field, raised.value.problem.value) == ("limit", "-1")


def test_a_forecast_creates_no_database(bare_home):
    assert lathe("forecast", "--model", "static/starter", "--gpu", "h100").exit_code == 0
    assert not bare_home.exists()


def test_a_folder_of_files_becomes_a_data_set_without_a_copy_of_them(home, tmp_path):
    folder = tmp_path / "rows"
    folder.mkdir()
    for name in ("a.jsonl", "b.jsonl"):
        (folder / name).write_text(json.dumps({"prompt": name, "completion": "x"}) + "\n")
    assert answer("dataset", "add", folder)["rows"] == 2
    assert not list((home / "uploads").glob("*"))


def test_an_archive_that_is_none_is_named(home, tmp_path):
    file = tmp_path / "no.zip"
    file.write_text("nothing")
    [problem] = answer("restore", file, exit_code=1)["error"]
    assert (problem["field"], problem["value"]) == ("FILE", str(file))


def test_all_lines_of_a_long_log_are_printed(prepared):
    assert len(lathe("logs", prepared.finished, "--tail", "100000").stdout.splitlines()) > 2


@pytest.fixture
def endless(monkeypatch):
    """A route with an endless answer; the number of its parts so far, and an event that is set at its end."""
    sent, ended = [], threading.Event()

    async def route(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"part", "more_body": True})
                sent.append(1)
        finally:
            ended.set()

    monkeypatch.setattr(in_process, "application", lambda _path: route)
    return sent, ended


def test_an_answer_is_read_as_it_is_written(home, endless):
    sent, ended = endless
    with in_process.answered("GET", "/api/runs/x/archive.zip") as streamed:
        parts = streamed.iter_bytes()
        assert [next(parts) for _ in range(20)] == [b"part"] * 20
        assert len(sent) < 40
    assert ended.is_set()


def test_a_download_that_fails_leaves_no_file_and_ends_the_route(home, endless, tmp_path, monkeypatch):
    def full(_self):
        yield b"part"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(in_process.Answer, "iter_bytes", full)
    with pytest.raises(OSError, match="No space"):
        connect().download("/api/runs/x/archive.zip", tmp_path / "x.zip")
    assert endless[1].is_set()
    assert not list(tmp_path.glob("*.zip*"))


def test_an_error_in_the_middle_of_an_answer_is_raised(home, monkeypatch, tmp_path):
    async def route(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"part", "more_body": True})
        raise UserError("run", "x", "has lost a file.")

    monkeypatch.setattr(in_process, "application", lambda _path: route)
    with pytest.raises(UserError, match="has lost a file"):
        connect().download("/api/runs/x/archive.zip", tmp_path / "x.zip")
    assert not list(tmp_path.glob("*.zip*"))


@pytest.mark.slow
def test_ctrl_c_ends_a_command_while_its_route_works(home):
    program = (
        "import time; from app.documents import system; from app.cli.__main__ import main\n"
        "system.document = lambda *_, **__: (print('works', flush=True), time.sleep(600))\n"
        "main(['system'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n{program}"],
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout.readline() == b"works\n"
        process.send_signal(signal.SIGINT)
        eventually(lambda: process.poll() is not None, [process])
    assert process.returncode == 1
