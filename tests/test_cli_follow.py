"""`lathe run --follow` and `lathe export`: a run seen through to its adapter."""

import json
import os
import pty
import signal
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager

import pytest
from commands import all_runs, answer, lathe
from played_run import GIB, PlayedRun

from training.events import PhaseStarted
from worker.models import Status


@pytest.fixture
def finished(home):
    run = PlayedRun().claim().end()
    folder = home / "runs" / run.id
    folder.mkdir(parents=True)
    with zipfile.ZipFile(folder / "adapter.zip", "w") as archive:
        archive.writestr("adapter/adapter_model.safetensors", "weights")
    return run


def test_export_writes_the_adapter_and_replaces_a_file_only_when_told(finished, tmp_path):
    target = tmp_path / "mine.zip"
    assert answer("export", finished.id, "-o", target)["bytes"] == target.stat().st_size
    assert zipfile.ZipFile(target).namelist() == ["adapter/adapter_model.safetensors"]
    again = lathe("export", finished.id, "-o", target)
    assert (again.exit_code, "--force" in again.stderr) == (1, True)
    assert lathe("export", finished.id, "-o", target, "--force").exit_code == 0


def test_export_into_a_folder_that_is_not_there_names_it_and_leaves_nothing(finished, tmp_path):
    result = lathe("export", finished.id, "-o", tmp_path / "no" / "mine.zip")
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr
    assert not (tmp_path / "no").exists()


def test_export_of_a_run_that_is_not_done_says_what_to_do(home, tmp_path):
    run = PlayedRun()
    result = lathe("export", run.id, "-o", tmp_path / "mine.zip")
    assert result.stderr == (
        f"Error: Run {run.id} is queued: its adapter is written at the end. Wait for it: lathe show {run.id}\n"
    )


@contextmanager
def played_in_the_background(play):
    """Waits for the run that a command queues, then plays it."""
    command_ended = threading.Event()

    def wait_and_play():
        while not (queued := all_runs()) and not command_ended.wait(0.05):
            pass
        for run in queued:
            play(PlayedRun.of(run.id).claim().report(PhaseStarted(phase="training")))

    thread = threading.Thread(target=wait_and_play)
    thread.start()
    try:
        yield
    finally:
        command_ended.set()
        thread.join()


@pytest.mark.parametrize(
    ("end", "exit_code", "told"),
    [
        (lambda run: run.end(), 0, "Held-out exact match 4.0% before, 96.0% after (50 rows)"),
        (lambda run: run.end(Status.FAILED, error={"message": "Rank 0 ended."}), 1, "Rank 0 ended."),
        (lambda run: run.end(Status.STOPPED), 3, "lathe resume"),
    ],
    ids=["finished", "failed", "stopped"],
)
def test_a_followed_run_ends_with_its_results_and_an_exit_code_of_its_own(home, run_file, end, exit_code, told):
    with played_in_the_background(end):
        result = lathe("run", run_file, "--follow")
    assert result.exit_code == exit_code
    assert told in " ".join(result.stdout.split())
    assert "http://127.0.0.1:7860/" in result.stdout


def test_a_followed_run_with_json_keeps_stdout_for_the_answer(home, run_file):
    with played_in_the_background(lambda run: run.end()):
        result = lathe("run", run_file, "--follow", "--json")
    assert json.loads(result.stdout)["summary"]["memory"]["peak_bytes"] == [3 * GIB, 7 * GIB // 2]
    assert "in the queue" in result.stderr


def test_ctrl_c_on_a_terminal_leaves_the_run_queued_and_says_how_to_stop_it(home, run_file):
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "app.cli", "run", str(run_file), "--follow"]
    with subprocess.Popen(command, stdin=end, stdout=end, stderr=end, start_new_session=True) as process:
        os.close(end)
        shown = b""
        while b"in the queue" not in shown:
            shown += os.read(terminal, 4096)
        process.send_signal(signal.SIGINT)
        while b"lathe stop" not in shown:
            shown += os.read(terminal, 4096)
        assert process.wait() == 130
    os.close(terminal)
    [run] = all_runs()
    assert f"lathe stop {run.id}".encode() in shown
    assert (run.status, run.request) == (Status.QUEUED, None)
