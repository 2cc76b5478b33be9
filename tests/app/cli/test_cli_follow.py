"""`lathe run --follow`, `lathe export` and `lathe push`: a run from submit to its adapter."""

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
import warm
from commands import all_runs, answer, lathe
from played_run import GIB, PlayedRun

from tests.stand_in_hub import receive
from training.run_folder.events import PhaseStarted
from worker.settings import get_settings
from worker.store.tables import Status


@pytest.fixture
def finished(home):
    run = PlayedRun().claim().end()
    folder = home / "runs" / run.id
    (folder / "adapter").mkdir(parents=True)
    (folder / "adapter/adapter_model.safetensors").write_bytes(b"weights")
    with zipfile.ZipFile(folder / "adapter.zip", "w") as archive:
        archive.writestr("adapter/adapter_model.safetensors", "weights")
    return run


def test_export_replaces_a_file_only_with_force(finished, tmp_path):
    target = tmp_path / "mine.zip"
    assert answer("export", finished.id, "-o", target)["bytes"] == target.stat().st_size
    assert zipfile.ZipFile(target).namelist() == ["adapter/adapter_model.safetensors"]
    again = lathe("export", finished.id, "-o", target)
    assert (again.exit_code, "--force" in again.stderr) == (1, True)
    assert lathe("export", finished.id, "-o", target, "--force").exit_code == 0


def test_export_replaces_a_folder_only_with_force(finished, tmp_path):
    target = tmp_path / "mine"
    target.mkdir()
    assert answer("export", finished.id, "--to", target) == {"folder": str(target), "bytes": 7}
    assert [path.name for path in target.iterdir()] == ["adapter_model.safetensors"]
    (target / "other").touch()
    again = lathe("export", finished.id, "--to", target)
    assert (again.exit_code, "--force" in again.stderr) == (1, True)
    assert lathe("export", finished.id, "--to", target, "--force").exit_code == 0
    assert [path.name for path in tmp_path.glob("*mine*/*")] == ["adapter_model.safetensors"]


def test_export_uses_the_merged_model_of_the_run(finished, home, tmp_path):
    merged = home / "runs" / finished.id / "merged"
    merged.mkdir()
    (merged / "model.safetensors").write_bytes(b"whole")
    assert answer("export", finished.id, "--merged", "--to", tmp_path / "whole")["bytes"] == 5
    assert answer("export", finished.id, "--merged", "-o", tmp_path)["file"].endswith(f"{finished.id}-merged.zip")
    assert zipfile.ZipFile(tmp_path / f"{finished.id}-merged.zip").namelist() == ["model.safetensors"]


@pytest.mark.slow
def test_export_explains_why_merging_is_impossible(finished, tmp_path, monkeypatch):
    warm.use_python(monkeypatch)
    result = lathe("export", finished.id, "--merged", "--to", tmp_path / "whole")
    assert result.exit_code == 1
    assert "the result could not be created: " in result.stderr
    assert "config.json" in result.stderr


def test_export_requires_one_target(finished, tmp_path):
    for places in ([], ["-o", tmp_path / "a.zip", "--to", tmp_path / "a"]):
        assert "Give --output or --to." in lathe("export", finished.id, *places).stderr


def test_push_uploads_the_result_to_a_private_repository(finished, monkeypatch):
    with receive() as (address, received):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("LATHE_HUB_TOKEN", "hf_good")
        get_settings.cache_clear()
        pushed = lathe("push", finished.id, "owner/model")
    assert pushed.exit_code == 0, pushed.stderr
    assert received.files == {"adapter_model.safetensors": b"weights"}
    assert received.private is True
    assert "hf_good" not in pushed.stdout + pushed.stderr


@pytest.mark.parametrize(
    ("token", "repo", "message"),
    [
        ("", "owner/model", "needs a hub token. Set HF_TOKEN"),
        ("hf_bad", "owner/model", "was refused by the hub (401)"),
        ("hf_good", "other/model", "was refused by the hub (403)"),
        ("hf_good", "a/b/c", "is not a valid repository name. Write owner/name."),
    ],
)
def test_push_prints_the_reason_of_a_refusal(finished, monkeypatch, token, repo, message):
    with receive() as (address, received):
        monkeypatch.setenv("HF_ENDPOINT", address)
        monkeypatch.setenv("HF_TOKEN", token)
        result = lathe("push", finished.id, repo)
    assert result.exit_code == 1
    assert message in result.stderr
    assert received.files == {}
    assert not token or token not in result.stderr


def test_export_into_a_missing_folder_is_an_error_without_leftovers(finished, tmp_path):
    result = lathe("export", finished.id, "-o", tmp_path / "no" / "mine.zip")
    assert result.exit_code == 1
    assert "No such file or directory" in result.stderr
    assert not (tmp_path / "no").exists()


def test_export_of_an_unfinished_run_prints_the_next_command(home, tmp_path):
    run = PlayedRun()
    result = lathe("export", run.id, "-o", tmp_path / "mine.zip")
    assert result.stderr == (
        f"Error: run (given: '{run.id}'): is queued: its result is saved at the end. Wait for it: lathe show {run.id}\n"
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
    ("end", "exit_code", "message"),
    [
        (lambda run: run.end(), 0, "Held-out exact match 4.0% before, 96.0% after (50 rows)"),
        (lambda run: run.end(Status.FAILED, error={"message": "Rank 0 ended."}), 1, "Rank 0 ended."),
        (lambda run: run.end(Status.STOPPED), 3, "lathe resume"),
    ],
    ids=["finished", "failed", "stopped"],
)
def test_following_a_run_prints_its_results_and_sets_the_exit_code(home, run_file, end, exit_code, message):
    with played_in_the_background(end):
        result = lathe("run", run_file, "--follow")
    assert result.exit_code == exit_code
    assert message in " ".join(result.stdout.split())
    assert "http://127.0.0.1:7860/" in result.stdout


def test_following_with_json_prints_only_json_on_stdout(home, run_file):
    with played_in_the_background(lambda run: run.end()):
        result = lathe("run", run_file, "--follow", "--json")
    assert json.loads(result.stdout)["summary"]["memory"]["peak_bytes"] == [3 * GIB, 7 * GIB // 2]
    assert "Attempt 1 starts" in result.stderr


def test_ctrl_c_leaves_the_run_queued_and_prints_the_stop_command(home, run_file):
    terminal, end = pty.openpty()
    command = [sys.executable, "-m", "app.cli.__main__", "run", str(run_file), "--follow"]
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
