"""The command `lathe`: output, exit codes and error messages."""

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from commands import all_runs, answer, lathe
from played_run import SUMMARY, PlayedRun

from app.cli.__main__ import main
from app.errors import storage_problem
from training.config.fields import settings
from training.run_folder.events import Metrics, Note
from worker.store.database import UNREACHABLE
from worker.store.tables import Status

HEAVY = ("torch", "transformers", "gradio", "fastapi", "sqlmodel", "sqlalchemy", "celery", "alembic", "pyarrow")


def test_help_of_every_command_loads_no_heavy_module():
    program = (
        "import sys; from app.cli.__main__ import main; "
        "[main([*command, '--help'], standalone_mode=False) for command in ([], *([name] for name in main.commands))]; "
        f"sys.exit(', '.join(name for name in {HEAVY} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage:") == 1 + len(main.commands)


def test_run_has_a_flag_for_every_setting_with_its_bounds_and_default():
    help_text = " ".join(lathe("run", "--help").stdout.split())
    assert [name for name in settings() if f"--{name.replace('_', '-')} " not in help_text] == []
    assert "[1 to 1024; default 16]" in help_text
    assert "[single, ddp, zero0, zero1, zero2, zero3, fsdp; default single]" in help_text


def test_flags_override_the_settings_of_a_file(database, run_file):
    flags = "--learning-rate 3e-4 --use_rslora true --strategy zero2 --num-processes 2"
    queued = answer("run", run_file, *flags.split())
    config = queued["config"]
    assert queued["status"] == "queued"
    assert (config["name"], config["lora_r"], config["learning_rate"]) == ("from a file", 8, 3e-4)
    assert (config["use_rslora"], config["strategy"], config["num_processes"]) == (True, "zero2", 2)
    assert [run.id for run in all_runs()] == [queued["id"]]


def test_a_run_is_queued_from_flags_and_the_next_commands_are_printed(home, run_file, tmp_path):
    result = lathe("run", "--model", tmp_path / "model", "--data", tmp_path / "rows.jsonl", "--max-steps", "5")
    [run] = all_runs()
    assert result.exit_code == 0
    assert f"Queued run {run.id}: model on rows.jsonl" in result.stdout
    assert f"lathe logs {run.id} --follow" in result.stdout


def test_the_first_command_creates_the_database(bare_home):
    assert answer("runs") == []
    assert "No runs yet. Queue one with `lathe run CONFIG.yaml`." in lathe("runs").stdout


def test_every_invalid_setting_is_reported_with_its_value_and_fix_and_nothing_is_queued(home, run_file):
    result = lathe("run", run_file, "--learning-rate", "abc", "--lora-r", "0", "--method", "magic")
    assert result.exit_code == 1
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "Error: method (given: 'magic'): is not one of the choices. "
        "Choose lora, qlora, full, or one of 38 more in docs/configuration.md.",
        "Error: lora_r (given: '0'): is out of bounds. Give a number 1 to 1024, for example 16.",
        "Error: learning_rate (given: 'abc'): is not a number. Give a number above 0, at most 1, for example 0.0002.",
    ]
    assert all_runs() == []


def test_with_json_errors_are_json_too(home, run_file):
    [problem] = answer("run", run_file, "--learning-rate", "abc", exit_code=1)["error"]
    assert (problem["field"], problem["value"], problem["message"]) == ("learning_rate", "abc", "is not a number.")
    assert problem["fix"].startswith("Give a number above 0")


def test_conflicting_settings_are_refused_with_the_fix(home, run_file):
    result = lathe("run", run_file, "--strategy", "zero3")
    assert result.exit_code == 1
    assert "num_processes" in result.stderr
    assert "Set strategy to single" in result.stderr
    assert all_runs() == []


def test_a_missing_configuration_file_is_named_in_the_error(home, tmp_path):
    result = lathe("run", tmp_path / "nothing.yaml")
    assert result.exit_code == 1
    assert f"configuration file (given: '{tmp_path / 'nothing.yaml'}'): cannot be read: No such file" in result.stderr


def test_data_that_cannot_train_is_refused_at_once(home, run_file, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "one"}\n{"nothing": 1}\n')
    result = lathe("run", run_file)
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: data")
    assert all_runs() == []


@pytest.mark.parametrize("command", ["run", "show", "fly", "run --lerning-rate 1", "runs --limit 0"])
def test_a_usage_error_exits_with_2_and_prints_the_usage(home, command):
    result = lathe(*command.split())
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_runs_lists_the_newest_first_and_can_be_filtered(database):
    first = PlayedRun("letters").claim().report(Metrics(step=1, values={"loss": 0.12345})).end()
    second = PlayedRun("numbers")
    listed = lathe("runs").stdout
    assert listed.index(second.id) < listed.index(first.id)
    assert "0.1235" in listed
    assert [row["id"] for row in answer("runs", "--status", "finished")] == [first.id]
    assert [row["id"] for row in answer("runs", "--search", "numb")] == [second.id]
    assert lathe("runs", "--search", "nothing like it").stdout == "No matching runs.\n"


def test_runs_are_listed_by_the_value_of_a_setting(database):
    high, low = PlayedRun("high", learning_rate=1e-3), PlayedRun("low", learning_rate=1e-4)
    listed = answer("runs", "--group", "learning_rate")
    assert [(row["id"], row["group"]) for row in listed] == [(low.id, "0.0001"), (high.id, "0.001")]
    lines = lathe("runs", "--group", "learning_rate").stdout.splitlines()
    assert [line.split()[-1] for line in lines] == ["LEARNING_RATE", "0.0001", "0.001"]


def test_show_prints_the_trainers_values_as_json(database):
    run = PlayedRun().claim("host/cuda:0", "host/cuda:1").report(Note(message="3 rows were cut off")).end()
    shown = answer("show", run.id)
    assert shown["summary"] == SUMMARY
    assert (shown["status"], shown["name"], shown["attempt"], shown["error"]) == ("finished", "letters", 1, None)
    assert shown["config"]["model"] == "models/tiny"
    assert "3 rows were cut off" in [event["message"] for event in shown["events"]]
    expected = {"id", "phase", "step", "total_steps", "created_at", "started_at", "finished_at", "devices"}
    assert expected <= set(shown)


def test_show_prints_the_same_values_with_units(home):
    shown = " ".join(lathe("show", PlayedRun().claim().end().id).stdout.split())
    for text in (
        "Status finished",
        "Engine ZeRO-2 (DeepSpeedEngine), 2 processes, bf16",
        "Held-out exact match 4.0% before, 96.0% after (50 rows)",
        "Held-out token F1 12.5% before, 98.0% after",
        "Final loss 0.1235",
        "Trainable parameters 294,912 of 124,737,792 (0.2364%)",
        "Adapter size 1.1 MiB",
        "Speed 1,234 tokens/s, 12.3 samples/s",
        "Peak memory rank 0: 3.0 GiB, rank 1: 3.5 GiB",
        "Training time 2 min 5 s",
        "learning_rate 0.0002",
    ):
        assert text in shown


def test_a_run_is_found_by_a_prefix_of_its_id(home):
    run = PlayedRun()
    assert answer("show", run.id[:8])["id"] == run.id


def test_a_failed_run_shows_its_error_and_the_fix(home):
    log = "\n".join(f"line {number}" for number in range(100))
    error = {"message": "The disk is full.", "fix": "Free 2.0 GiB.", "phase": "saving", "rank": None, "log_tail": log}
    run = PlayedRun().claim().end(Status.FAILED, error=error)
    shown = " ".join(lathe("show", run.id).stdout.split())
    assert "Error Error The disk is full. Fix Free 2.0 GiB. Phase saving Log line 85 line 86" in shown
    assert "line 99" in shown


@pytest.mark.parametrize("command", ["show", "logs", "stop", "resume"])
def test_a_missing_run_is_reported_on_stderr_or_in_json(home, command):
    result = lathe(command, "nosuchrun")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'nosuchrun'" in result.stderr
    assert answer(command, "nosuchrun", exit_code=1)["error"][0]["value"] == "nosuchrun"


def test_logs_prints_the_last_lines_as_text_or_json_lines(database):
    run = PlayedRun().claim().prints("one", "two", "three")
    assert lathe("logs", run.id, "--tail", 2).stdout == "two\nthree\n"
    lines = [json.loads(line) for line in lathe("logs", run.id, "--json").stdout.splitlines()]
    assert [line["text"] for line in lines] == ["one", "two", "three"]


def test_logs_of_a_run_without_output_explain_why(home):
    result = lathe("logs", PlayedRun().id)
    assert (result.stdout, result.stderr) == ("", "No output yet: the run is queued.\n")


def test_following_logs_continues_until_the_run_ends(home):
    run = PlayedRun().claim().prints("one")
    later = threading.Timer(0.3, lambda: run.prints("two", "three").end())
    later.start()
    result = lathe("logs", run.id, "--follow")
    later.join()
    assert result.stdout == "one\ntwo\nthree\n"


def test_a_queued_run_is_stopped_at_once_and_can_be_resumed(database):
    run = PlayedRun()
    assert f"Stopped run {run.id}" in lathe("stop", run.id[:6]).stdout
    assert run.row.status is Status.STOPPED
    assert answer("resume", run.id)["status"] == "queued"


def test_stop_requests_a_stop_of_an_active_run(home):
    run = PlayedRun().claim()
    assert f"lathe resume {run.id}" in lathe("stop", run.id).stdout
    assert run.row.request == "stop"


@pytest.mark.parametrize(("command", "message"), [("stop", "nothing to stop"), ("resume", "has finished")])
def test_an_ended_run_refuses_impossible_commands(home, command, message):
    result = lathe(command, PlayedRun().claim().end().id)
    assert result.exit_code == 1
    assert message in result.stderr


def test_the_printed_page_address_is_that_of_the_running_lathe_up(home):
    run = PlayedRun().ask_to_stop()
    (home / "lathe.lock").write_text(json.dumps({"pid": os.getpid(), "address": "http://127.0.0.1:9999"}))
    assert f"Page  http://127.0.0.1:9999/run?id={run.id}" in lathe("resume", run.id).stdout


@pytest.mark.slow
def test_a_web_server_on_a_used_port_proposes_another(home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "app.cli.__main__", "web", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"Error: LATHE_PORT (given: {port}): is used by another program on 127.0.0.1. Choose another: "
    )


def test_an_invalid_environment_variable_is_named_in_the_error(home, monkeypatch):
    from worker.settings import get_settings

    monkeypatch.setenv("LATHE_PORT", "many")
    get_settings.cache_clear()
    result = lathe("runs")
    assert result.exit_code == 1
    assert "LATHE_PORT (given: 'many')" in result.stderr


def test_an_unreachable_database_is_a_message_without_a_traceback(home, monkeypatch):
    from worker.settings import get_settings

    monkeypatch.setenv("LATHE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    get_settings.cache_clear()
    result = lathe("runs")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: database: is unreachable: ")
    assert "LATHE_DATABASE_URL" in result.stderr


@pytest.mark.parametrize("kind", UNREACHABLE)
def test_every_error_of_an_unreachable_database_has_a_fix(kind):
    problem = storage_problem(kind("SELECT 1", {}, Exception("the connection is closed")))
    assert problem is not None
    assert problem.message == "is unreachable: the connection is closed." and "LATHE_DATABASE_URL" in problem.fix


def test_an_unexpected_error_keeps_its_traceback(home, monkeypatch):
    from app.cli.runs import show as cli_show

    monkeypatch.setattr(cli_show, "page", lambda values, now: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lathe("show", PlayedRun().id)
