"""The command `lathe`: what it answers, with what exit code, and what it says when something is wrong."""

import json
import os
import socket
import subprocess
import sys
import threading

import pytest
from commands import all_runs, answer, lathe
from played_run import SUMMARY, PlayedRun

from app.cli import main
from training.events import Metrics, Note
from training.fields import settings
from worker.models import Status

HEAVY = ("torch", "transformers", "gradio", "fastapi", "sqlmodel", "sqlalchemy", "celery", "alembic", "pyarrow")


def test_help_of_every_command_answers_without_loading_anything_heavy():
    program = (
        "import sys; from app.cli import main; "
        "[main([*command, '--help'], standalone_mode=False) for command in ([], *([name] for name in main.commands))]; "
        f"sys.exit(', '.join(name for name in {HEAVY} if name in sys.modules) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("Usage:") == 1 + len(main.commands)


def test_run_has_a_flag_for_every_setting_with_its_bounds_and_default():
    told = " ".join(lathe("run", "--help").stdout.split())
    assert [name for name in settings() if f"--{name.replace('_', '-')} " not in told] == []
    assert "[1 to 1024; default 16]" in told
    assert "[single, ddp, zero0, zero1, zero2, zero3, fsdp; default single]" in told


def test_a_run_is_queued_from_a_file_with_flags_in_place_of_its_settings(database, run_file):
    flags = "--learning-rate 3e-4 --use_rslora true --strategy zero2 --num-processes 2"
    queued = answer("run", run_file, *flags.split())
    asked = queued["config"]
    assert queued["status"] == "queued"
    assert (asked["name"], asked["lora_r"], asked["learning_rate"]) == ("from a file", 8, 3e-4)
    assert (asked["use_rslora"], asked["strategy"], asked["num_processes"]) == (True, "zero2", 2)
    assert [run.id for run in all_runs()] == [queued["id"]]


def test_a_run_is_queued_from_flags_alone_and_the_next_commands_are_named(home, run_file, tmp_path):
    result = lathe("run", "--model", tmp_path / "model", "--data", tmp_path / "rows.jsonl", "--max-steps", "5")
    [run] = all_runs()
    assert result.exit_code == 0
    assert f"Queued run {run.id}: model on rows.jsonl" in result.stdout
    assert f"lathe logs {run.id} --follow" in result.stdout


def test_a_first_command_makes_the_database(bare_home):
    assert answer("runs") == []
    assert "No runs yet. Queue one with `lathe run CONFIG.yaml`." in lathe("runs").stdout


def test_every_wrong_setting_is_named_with_its_value_and_fix_and_nothing_is_queued(home, run_file):
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


def test_settings_that_do_not_go_together_are_refused_with_the_fix(home, run_file):
    result = lathe("run", run_file, "--strategy", "zero3")
    assert result.exit_code == 1
    assert "num_processes" in result.stderr
    assert "Set strategy to single" in result.stderr
    assert all_runs() == []


def test_a_configuration_file_that_is_not_there_is_named(home, tmp_path):
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
def test_a_command_used_wrongly_exits_with_2_and_says_how_it_is_used(home, command):
    result = lathe(*command.split())
    assert result.exit_code == 2
    assert "Usage:" in result.stderr


def test_runs_lists_the_newest_first_and_can_be_narrowed(database):
    first = PlayedRun("letters").claim().report(Metrics(step=1, values={"loss": 0.12345})).end()
    second = PlayedRun("numbers")
    listed = lathe("runs").stdout
    assert listed.index(second.id) < listed.index(first.id)
    assert "0.1235" in listed
    assert [row["id"] for row in answer("runs", "--status", "finished")] == [first.id]
    assert [row["id"] for row in answer("runs", "--search", "numb")] == [second.id]
    assert lathe("runs", "--search", "nothing like it").stdout == "No run matches.\n"


def test_show_answers_with_what_the_trainer_reported_as_it_reported_it(database):
    run = PlayedRun().claim("host/cuda:0", "host/cuda:1").report(Note(message="3 rows were cut off")).end()
    shown = answer("show", run.id)
    assert shown["summary"] == SUMMARY
    assert (shown["status"], shown["name"], shown["attempt"], shown["error"]) == ("finished", "letters", 1, None)
    assert shown["config"]["model"] == "models/tiny"
    assert "3 rows were cut off" in [event["message"] for event in shown["events"]]
    wanted = {"id", "phase", "step", "total_steps", "created_at", "started_at", "finished_at", "devices"}
    assert wanted <= set(shown)


def test_show_tells_people_the_same_with_units(home):
    shown = " ".join(lathe("show", PlayedRun().claim().end().id).stdout.split())
    for told in (
        "Status finished",
        "Strategy ZeRO-2 (DeepSpeedEngine), 2 processes, bf16",
        "Held-out exact match 4.0% before, 96.0% after (50 rows)",
        "Held-out token F1 12.5% before, 98.0% after",
        "Final loss 0.1235",
        "Trained parameters 294,912 of 124,737,792 (0.2364%)",
        "Adapter size 1.1 MiB",
        "Speed 1,234 tokens/s, 12.3 samples/s",
        "Peak memory rank 0: 3.0 GiB, rank 1: 3.5 GiB",
        "Training time 2 min 5 s",
        "learning_rate 0.0002",
    ):
        assert told in shown


def test_a_run_is_found_by_the_beginning_of_its_id(home):
    run = PlayedRun()
    assert answer("show", run.id[:8])["id"] == run.id


def test_a_failed_run_shows_what_went_wrong_and_the_fix(home):
    log = "\n".join(f"line {number}" for number in range(100))
    error = {"message": "The disk is full.", "fix": "Free 2.0 GiB.", "phase": "saving", "rank": None, "log_tail": log}
    run = PlayedRun().claim().end(Status.FAILED, error=error)
    shown = " ".join(lathe("show", run.id).stdout.split())
    assert "What went wrong Error The disk is full. Fix Free 2.0 GiB. Phase saving Log line 85 line 86" in shown
    assert "line 99" in shown


@pytest.mark.parametrize("command", ["show", "logs", "stop", "resume"])
def test_a_run_that_does_not_exist_is_named_on_stderr_or_in_json(home, command):
    result = lathe(command, "nosuchrun")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "'nosuchrun'" in result.stderr
    assert "'nosuchrun'" in answer(command, "nosuchrun", exit_code=1)["error"][0]["message"]


def test_logs_prints_the_last_lines_as_text_or_as_one_json_object_a_line(database):
    run = PlayedRun().claim().prints("one", "two", "three")
    assert lathe("logs", run.id, "--tail", 2).stdout == "two\nthree\n"
    lines = [json.loads(line) for line in lathe("logs", run.id, "--json").stdout.splitlines()]
    assert [line["text"] for line in lines] == ["one", "two", "three"]


def test_logs_of_a_run_that_has_printed_nothing_say_why(home):
    result = lathe("logs", PlayedRun().id)
    assert (result.stdout, result.stderr) == ("", "Nothing printed yet: the run is queued.\n")


def test_following_logs_goes_on_until_the_run_has_ended(home):
    run = PlayedRun().claim().prints("one")
    later = threading.Timer(0.3, lambda: run.prints("two", "three").end())
    later.start()
    result = lathe("logs", run.id, "--follow")
    later.join()
    assert result.stdout == "one\ntwo\nthree\n"


def test_a_queued_run_is_stopped_at_once_and_can_be_resumed(database):
    run = PlayedRun()
    assert f"Run {run.id} is stopped" in lathe("stop", run.id[:6]).stdout
    assert run.row.status is Status.STOPPED
    assert answer("resume", run.id)["status"] == "queued"


def test_a_training_run_is_asked_to_stop(home):
    run = PlayedRun().claim()
    assert f"lathe resume {run.id}" in lathe("stop", run.id).stdout
    assert run.row.request == "stop"


@pytest.mark.parametrize(("command", "told"), [("stop", "nothing to stop"), ("resume", "has finished")])
def test_what_cannot_be_asked_of_an_ended_run_is_refused(home, command, told):
    result = lathe(command, PlayedRun().claim().end().id)
    assert result.exit_code == 1
    assert told in result.stderr


def test_the_page_is_named_at_the_address_of_the_lathe_up_that_runs(home):
    run = PlayedRun().ask_to_stop()
    (home / "lathe.lock").write_text(json.dumps({"pid": os.getpid(), "address": "http://127.0.0.1:9999"}))
    assert f"Page  http://127.0.0.1:9999/run?id={run.id}" in lathe("resume", run.id).stdout


def test_a_web_server_whose_port_is_taken_says_so_and_names_another(home):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        command = [sys.executable, "-m", "app.cli", "web", "--port", port]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: Port {port} of 127.0.0.1 is in use by another program. Choose another: LATHE_PORT=")


def test_an_environment_variable_that_is_wrong_is_named(home, monkeypatch):
    from worker.settings import get_settings

    monkeypatch.setenv("LATHE_PORT", "many")
    get_settings.cache_clear()
    result = lathe("runs")
    assert result.exit_code == 1
    assert "LATHE_PORT (given: 'many')" in result.stderr


def test_a_database_server_that_is_away_is_a_message_not_a_traceback(home, monkeypatch):
    from worker.settings import get_settings

    monkeypatch.setenv("LATHE_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/nothing")
    get_settings.cache_clear()
    result = lathe("runs")
    assert result.exit_code == 1
    assert result.stderr.startswith("Error: The database does not answer: ")
    assert "LATHE_DATABASE_URL" in result.stderr


def test_a_mistake_of_ours_keeps_its_traceback(home, monkeypatch):
    from app import cli_show

    monkeypatch.setattr(cli_show, "page", lambda values, now: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        lathe("show", PlayedRun().id)
