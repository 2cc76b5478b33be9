"""`lathe sweep` on the local database."""

import json

import pytest
import yaml
from commands import all_runs, answer, lathe
from played_run import PlayedRun

from training.run_folder.events import Metrics
from worker.store.tables import Status


@pytest.fixture
def sweep_file(home, run_file, tmp_path):
    """A function that writes a sweep of the run in `run_file`, with these fields."""

    def write(**fields):
        path = tmp_path / "sweep.yaml"
        config = yaml.safe_load(run_file.read_text())
        path.write_text(json.dumps({"name": "ranks", "config": config, "space": {"lora_r": [4, 0, 8]}} | fields))
        return path

    return write


def test_a_dry_run_shows_the_plan_and_queues_nothing(sweep_file):
    result = lathe("sweep", sweep_file(), "--dry-run")
    assert result.output.startswith("3 runs, time unknown, 1 cannot start. 2 runs will start; the others are left out.")
    assert "lora_r (given: 0): is out of bounds." in result.output
    assert all_runs() == []


def test_the_time_is_that_of_earlier_runs_with_the_same_model_and_method(sweep_file, run_file):
    config = yaml.safe_load(run_file.read_text())
    run = PlayedRun(model=config["model"], max_steps=10).claim()  # 4 rows per step
    run.report(*(Metrics(step=step, time=1000.0 + 3 * step, values={"loss": 1.0}) for step in (1, 2))).end()
    path = sweep_file(config=config | {"max_steps": 100, "gradient_accumulation_steps": 2})
    plan = answer("sweep", path, "--dry-run")
    assert (plan["steps"], plan["seconds"]) == (200, pytest.approx(2 * 100 * 6.0))  # twice the rows of a step
    assert lathe("sweep", path, "--dry-run").output.startswith("3 runs, about 20 min, 1 cannot start.")


def test_runs_that_do_not_fit_are_left_out_with_the_reason(sweep_file, run_file):
    config = yaml.safe_load(run_file.read_text())
    config |= {"model": "static/starter", "data": "static/starter/train.jsonl", "max_length": 8192}
    path = sweep_file(config=config, space={"micro_batch_size": [4, 65536], "lora_r": [4, 8]})
    plan = answer("sweep", path, "--dry-run")
    assert [run["fits"] for run in plan["runs"]] == [True, True, False, False]
    assert [run["starts"] for run in plan["runs"]] == [True, True, False, False]
    assert "of host memory in training; the machine has" in plan["runs"][3]["reason"]
    assert "2 do not fit" in lathe("sweep", path, "--dry-run").output


def test_a_sweep_is_queued_listed_shown_and_stopped(sweep_file):
    started = answer("sweep", sweep_file())
    assert [run.name for run in sorted(all_runs(), key=lambda run: run.trial)] == ["ranks · r=4", "ranks · r=8"]
    assert {(run.sweep_id, run.pause_at, run.status) for run in all_runs()} == {(started["id"], None, Status.QUEUED)}
    assert len({run.dataset_id for run in all_runs()}) == 1
    assert "2 queued" in lathe("sweep", "list").output
    shown = lathe("sweep", "show", started["id"][:8]).output
    assert "no result yet" in shown
    assert "r=8" in shown
    assert [run["id"] for run in answer("runs", "--search", f"sweep:{started['id']}")]
    assert answer("runs", "--search", "sweep:none") == []
    assert answer("sweep", "stop", started["id"])["statuses"] == {"stopped": 2}
    assert "has ended" in answer("sweep", "stop", started["id"], exit_code=1)["error"][0]["message"]


def test_a_sweep_of_which_no_run_can_start_is_refused(sweep_file):
    [error] = answer("sweep", sweep_file(space={"lora_r": [0, -1]}), exit_code=1)["error"]
    assert (error["field"], error["value"]) == ("lora_r", 0)
    assert answer("sweep", "list") == []
