"""Resume with another strategy or number of processes: the settings that follow, and what is refused."""

import json

import pytest

from training.config.choices import Strategy
from training.errors import UserError
from training.run_folder.checkpoint_layout import LAYOUT_FILE, CheckpointLayout
from training.run_folder.paths import MANIFEST_FILE, checkpoint_dir
from worker.runs import requests, submit
from worker.settings import get_settings
from worker.store.tables import Status


@pytest.fixture
def stopped(database, rung, config):
    """Makes a stopped run with a checkpoint of the given strategy and processes."""

    def make(strategy, processes, **settings):
        asked = config(strategy=strategy.value, num_processes=processes, precision="fp32", **settings)
        run = requests.stop(submit.submit(asked).id)
        checkpoint = checkpoint_dir(get_settings().runs_dir / run.id, 4)
        checkpoint.mkdir(parents=True)
        CheckpointLayout(strategy, processes, asked.global_batch_size, ["weight"], [[2, 2]]).write(checkpoint)
        (checkpoint / MANIFEST_FILE).write_text(json.dumps({"files": {}}))
        return run

    return make


def test_fewer_processes_accumulate_more_so_that_the_global_batch_stays(stopped):
    run = requests.resume(stopped(Strategy.ZERO3, 4).id, num_processes=2)
    assert (run.status, run.stepped_down) == (
        Status.QUEUED,
        {"num_processes": 2, "gradient_accumulation_steps": 2},
    )


def test_a_sharded_run_continues_on_one_device(stopped):
    run = requests.resume(stopped(Strategy.FSDP, 2).id, strategy=Strategy.SINGLE, num_processes=1)
    assert run.stepped_down == {"strategy": "single", "num_processes": 1, "gradient_accumulation_steps": 2}


def test_a_resume_with_the_same_processes_changes_no_setting(stopped):
    assert requests.resume(stopped(Strategy.DDP, 2).id, num_processes=2).stepped_down == {}


@pytest.mark.parametrize(
    ("before", "settings", "after", "field", "message"),
    [
        ((Strategy.DDP, 2), {}, {"num_processes": 3}, "gradient_accumulation_steps", "global batch size from 8 to 12"),
        ((Strategy.ZERO3, 2), {}, {"strategy": Strategy.ZERO0}, "strategy", "ZeRO stage 0 is not converted"),
        (
            (Strategy.DDP, 2),
            {"optimizer": "adamw_8bit"},
            {"strategy": Strategy.ZERO2},
            "optimizer",
            "divided differently",
        ),
        ((Strategy.DDP, 2), {}, {"num_processes": 1}, "strategy", "process"),
    ],
    ids=["global batch", "ZeRO-0", "optimizer", "settings that conflict"],
)
def test_what_cannot_continue_is_refused_with_its_fix(stopped, before, settings, after, field, message):
    run = stopped(*before, **settings)
    with pytest.raises(UserError, match=message) as refused:
        requests.resume(run.id, **after)
    assert refused.value.problem.field == field and refused.value.fix


def test_a_checkpoint_without_a_layout_is_older_than_the_check(stopped):
    run = stopped(Strategy.DDP, 2)
    (checkpoint_dir(get_settings().runs_dir / run.id, 4) / LAYOUT_FILE).unlink()
    assert requests.resume(run.id, num_processes=4).stepped_down["num_processes"] == 4
