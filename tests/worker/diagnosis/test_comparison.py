"""A failed run beside one that finished: new log lines and other settings."""

from played_run import PlayedRun
from subtest_table import table

from worker.diagnosis.comparison import MOST_LINES, different_settings, new_lines, template
from worker.store.tables import Status
from worker.supervision.run_diagnosis import compared, of_run


@table(
    ("line", "other"),
    [
        ("step 10 of 200 took 1.53 s", "step 7 of 9 took 0.2 s"),
        ("saved /data/runs/abc/checkpoint-10", "saved ./runs/x/checkpoint-7"),
        ("loaded 'rows.jsonl' (sha 0a1b2c3d4e)", "loaded 'other.jsonl' (sha 99aabbccdd)"),
        ("2026-01-02 10:00:00,123 ready", "2027-11-30 23:59:59,999 ready"),
    ],
)
def test_lines_that_differ_in_values_have_one_template(line, other):
    assert template(line) == template(other)


def test_only_lines_that_the_finished_run_did_not_print_are_new():
    finished = ["loading model from /a/b", "3 rows were cut off", " 10%|# | 1/10 [00:01<00:09]"]
    failed = [
        "loading model from /c/d",
        "99 rows were cut off",
        "no GPU was found",
        "no GPU was found",
        "{'loss': 1.0}",
    ]
    assert new_lines(failed, finished) == ["no GPU was found"]
    assert len(new_lines((f"line {'x' * n}" for n in range(99)), [])) == MOST_LINES


def test_settings_with_another_value_are_named_and_a_name_is_no_difference():
    assert different_settings({"name": "b", "lora_r": 8, "seed": 1}, {"name": "a", "lora_r": 4, "seed": 1}) == {
        "lora_r": (4, 8)
    }


def played(name, status, lines, **settings):
    run = PlayedRun(name, **settings).claim().prints(*lines)
    if status is Status.FAILED:
        return run.end(status, reason="for the test", error={"message": "It failed."})
    return run.end(status)


def test_a_failed_run_is_compared_with_the_finished_run_most_like_it(database):
    played("unlike", Status.FINISHED, ["nothing"], model="models/other", data="other.jsonl")
    good = played("good", Status.FINISHED, ["loading 1", "done"], lora_r=8)
    bad = played("bad", Status.FAILED, ["loading 2", "the moon is full"], lora_r=64)
    found = compared(bad.id)
    assert (found["run"], found["name"]) == (good.id, "good")
    assert found["settings"] == {"lora_r": [8, 64]}
    assert found["lines"] == ["the moon is full"]
    assert of_run(bad.id)["compared"] == found
    assert compared(good.id) is None


def test_without_a_finished_run_of_the_same_model_or_data_nothing_is_compared(database):
    played("unlike", Status.FINISHED, ["nothing"], model="models/other", data="other.jsonl")
    bad = played("bad", Status.FAILED, ["the moon is full"])
    assert compared(bad.id) is None
