"""Comparison of runs: results with units, the settings that differ, the best values, and the text forms."""

import csv
import io
import json

import pytest
from click.testing import CliRunner
from played_run import GIB, SUMMARY, PlayedRun
from web import client

from app.cli.__main__ import main
from app.documents.comparison import texts
from app.documents.comparison.document import TooManyRuns, compare
from training.run_folder.events import Metrics, Planned
from worker.store import database
from worker.store.tables import Run

HOSTILE = "<script>alert(1)</script>|`x`\u202egnp.exe\n" + "w" * 70


@pytest.fixture
def two(home):
    """A finished LoRA run, and a full fine-tuning run that has not started."""
    lora = PlayedRun("adapter | small", method="lora").claim().end()
    return lora.id, PlayedRun("whole", method="full", learning_rate=2e-5).id


def told(*arguments):
    done = CliRunner().invoke(main, ["compare", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


def compared(*runs, **options):
    with database.read() as session:
        return compare(session, [getattr(run, "id", run) for run in runs], **options)


def finished(name="run", devices=("host/cpu",), summary=None, **settings):
    return PlayedRun(name, **settings).claim(*devices).end(summary=SUMMARY | (summary or {}))


def change(run, **values):
    with database.write() as session:
        row = session.get(Run, run.id)
        for name, value in values.items():
            setattr(row, name, value)
        session.add(row)


def line(lines, key):
    return next(line for line in lines if line.key == key)


def test_runs_are_compared_in_groups_of_what_they_share_archived_ones_too(home):
    low, high, other = finished("low", lora_r=8), finished("high", lora_r=64), PlayedRun("other", lora_r=8)
    change(other, archived_at=1.0, best_loss=1.25)
    runs = {"runs": f"{high.id},{low.id},{other.id}", "group": "lora_r"}
    found = client().get("/api/compare", params=runs).json()
    assert [run["id"] for run in found["runs"]] == [high.id, low.id, other.id]
    assert [(group["value"], sorted(group["runs"]), group["best_loss"]) for group in found["groups"]] == [
        ("8", sorted([low.id, other.id]), 1.25),
        ("64", [high.id], None),
    ]
    assert client().get("/api/compare", params=runs | {"group": ""}).json()["groups"] == []
    refused = client().get("/api/compare", params=runs | {"group": "rank"})
    assert (refused.status_code, refused.json()["error"]["field"]) == (422, "group")


def test_results_have_units_and_memory_is_the_maximum_over_ranks(two):
    lines = {line.split("  ")[0]: line for line in told(*two).splitlines()}
    assert lines["Peak memory"].split()[-3:] == ["3.5", "GiB", "-"]
    assert "294,912" in lines["Trainable parameters"] and "0.2364%" in lines["Trainable"]
    assert lines["Steps/s"].split() == ["Steps/s", "3.08", "-"]
    assert lines["Devices"].split() == ["Devices", "cpu", "-"]


def test_runs_that_are_rewarded_are_compared_by_their_rewards(home):
    rewarded = [finished(name, task="grpo", rewards="contains", summary={"eval_loss": -0.5}) for name in ("a", "b")]
    change(rewarded[0], best_loss=-0.5)
    change(rewarded[1], best_loss=-0.75)
    usual = finished("c")
    change(usual, best_loss=2.0)
    lines = compared(*rewarded).results
    assert (line(lines, "best_reward").values, line(lines, "best_reward").best) == ([0.5, 0.75], {1})
    assert line(lines, "eval_reward").values == [0.5, 0.5] and not [one for one in lines if one.key == "best_loss"]
    lines = compared(*rewarded, usual).results
    assert (line(lines, "best_reward").values, line(lines, "best_loss").values) == (
        [0.5, 0.75, None],
        [None, None, 2.0],
    )


def test_the_highest_final_reward_is_the_best_and_losses_of_such_runs_are_not_compared(home):
    lines = compared(*(finished(task="grpo", summary={"final_loss": -reward}) for reward in (0.9, 0.5))).results
    assert (line(lines, "final_reward").values, line(lines, "final_reward").best) == ([0.9, 0.5], {0})
    assert not [one for one in lines if one.key == "final_loss"]


def test_only_different_settings_are_shown(two):
    settings = json.loads(told(*two, "--json"))["settings"]
    assert settings == {"learning_rate": [2e-4, 2e-5], "method": ["lora", "full"]}


def test_all_settings_are_shown_on_request_and_settings_without_effect_have_no_value(two):
    settings = json.loads(told(*two, "--json", "--all-settings"))["settings"]
    assert settings["lora_r"] == [16, None]
    assert settings["model"] == ["models/tiny", "models/tiny"]


def test_a_setting_that_is_empty_in_one_run_differs(home):
    settings = compared(PlayedRun(max_steps=10), PlayedRun()).settings
    assert line(settings, "max_steps").texts == ["10", "none"]


def test_a_setting_changed_after_an_out_of_memory_error_has_its_new_value(home):
    first, second = finished(micro_batch_size=8), finished(micro_batch_size=8)
    change(second, stepped_down={"micro_batch_size": 4})
    batch = line(compared(first, second).settings, "micro_batch_size")
    assert batch.values == [8, 4]
    assert batch.notes == ["", "8 before running out of memory"]


def test_data_devices_and_reported_setup_differ_outside_the_settings(home):
    plan = {"total_steps": 1, "start_step": 0, "train_rows": 9, "eval_rows": 1, "skipped_rows": 0, "truncated_rows": 0}
    plan |= {
        "zero_stage": None,
        "precision": "bf16",
        "trainable_parameters": 1,
        "total_parameters": 2,
        "target_modules": [],
    }
    first = PlayedRun().claim().report(Planned(**plan, engine="LlamaForCausalLM", world_size=1)).end()
    second = PlayedRun().claim("host/cuda:0").report(Planned(**plan, engine="DeepSpeedEngine", world_size=2)).end()
    change(first, fingerprints={"data": "a" * 64})
    change(second, fingerprints={"data": "b" * 64})
    found = {line.label: line.texts for line in compared(first, second).circumstances}
    assert found == {
        "Data, SHA-256": ["a" * 12, "b" * 12],
        "Device": ["cpu", "cuda"],
        "Processes, as used": ["1", "2"],
        "Engine, as used": ["LlamaForCausalLM", "DeepSpeedEngine"],
    }  # fmt: skip


def test_the_lowest_loss_and_the_highest_speed_are_best(home):
    slow = finished(summary={"final_loss": 0.5, "tokens_per_second": 10.0})
    fast = finished(summary={"final_loss": 0.7, "tokens_per_second": 90.0})
    results = compared(slow, fast).results
    assert line(results, "final_loss").best == {0}
    assert line(results, "tokens_per_second").best == {1}
    assert line(results, "peak_bytes").best == set()  # the same


def test_losses_on_different_data_have_no_best(home):
    first, second = finished(summary={"final_loss": 0.5}), finished(summary={"final_loss": 0.7})
    change(second, fingerprints={"data": "b" * 64})
    assert line(compared(first, second).results, "final_loss").best == set()


def test_host_and_device_memory_have_no_best(home):
    gpu = finished(devices=("host/cuda:0", "host/cuda:1"), summary={"memory": {"peak_bytes": [GIB, 2 * GIB]}})
    results = compared(finished(), gpu).results
    assert line(results, "peak_bytes").best == set()
    assert line(results, "peak_bytes").notes[1] == "rank 0: 1.0 GiB, rank 1: 2.0 GiB"
    assert line(results, "devices").texts == ["cpu", "2 x cuda"]


def test_a_running_run_has_the_results_so_far(home):
    run = PlayedRun().claim().report(Metrics(step=1, values={"loss": 2.5, "eval_loss": 2.0}))
    results = compared(run, PlayedRun()).results
    assert line(results, "final_loss").values[0] == 2.5
    assert line(results, "best_loss").values[0] == 2.0


def test_the_document_has_values_in_the_order_of_the_runs(two):
    data = json.loads(told(*reversed(two), "--json"))
    assert [run["id"] for run in data["runs"]] == list(reversed(two))
    assert data["measures"]["peak_bytes"] == [None, 7 * GIB // 2]
    assert data["measures"]["final_loss"] == [None, SUMMARY["final_loss"]]


def test_markdown_has_a_row_for_each_run_and_the_best_values_in_bold(home):
    summary = {key: SUMMARY[key] for key in ("trainable_parameters", "total_parameters", "tokens_per_second")}
    first = PlayedRun("one").claim().end(summary=summary)
    second = PlayedRun("two", lora_r=8).claim().end(summary=summary | {"tokens_per_second": 2000.4})
    assert texts.markdown(compared(first, second)) == (
        "| Run | Status | Method | Trainable parameters | Trainable | Tokens/s | Devices |\n"
        "| --- | --- | --- | ---: | ---: | ---: | ---: |\n"
        "| one | finished | LoRA | 294,912 | 0.2364% | 1,234 | cpu |\n"
        "| two | finished | LoRA | 294,912 | 0.2364% | **2,000** | cpu |\n"
        "\n"
        "| Setting | one | two |\n"
        "| --- | ---: | ---: |\n"
        "| LoRA r | 16 | 8 |\n"
    )


def test_csv_has_a_row_for_each_run_with_plain_numbers(home):
    first = PlayedRun("one").claim().end(summary={"tokens_per_second": 1234.5})
    second = PlayedRun("=two()", lora_r=8).claim().end(summary={"adapter_bytes": 7})
    assert texts.as_csv(compared(first, second)) == (
        "id,name,status,method,tokens_per_second,adapter_bytes,devices,lora_r\n"
        f"{first.id},one,finished,LoRA,1234.5,,cpu,16\n"
        f"{second.id},'=two(),finished,LoRA,,7,cpu,8\n"
    )


def test_columns_of_csv_have_different_names(two):
    heads = next(csv.reader(io.StringIO(told(*two, "--csv", "--all-settings"))))
    assert len(set(heads)) == len(heads)


def test_a_hostile_name_breaks_neither_markdown_nor_the_terminal(home):
    run, other = PlayedRun("plain"), PlayedRun(HOSTILE, lora_r=8)
    table = texts.markdown(compared(run, other)).splitlines()
    assert "\\<script\\>alert(1)\\</script\\>\\|\\`x\\` gnp.exe www" in table[3]
    assert len({row.replace("\\|", "").count("|") for row in table[:4]}) == 1
    assert "\u202e" not in told(run.id, other.id)


def test_a_missing_run_is_named_in_the_error_of_the_command(two):
    done = CliRunner().invoke(main, ["compare", two[0], "nothing"])
    assert done.exit_code != 0 and "nothing" in done.output


def test_missing_runs_are_named_and_the_others_compared(two):
    comparison = compared(two[0], "nothing", two[0], "nowhere")
    assert [run.id for run in comparison.runs] == [two[0]]
    assert [error.problem.value for error in comparison.missing] == ["nothing", "nowhere"]


def test_more_than_fifty_runs_are_refused(home):
    with pytest.raises(TooManyRuns, match="51 ids"):
        compared(*(f"abcd{number}" for number in range(51)))


def test_rest_answers_with_the_document_of_the_command(two):
    found = client().get("/api/compare", params={"runs": ",".join(two)})
    assert found.json() == json.loads(told(*two, "--json"))


@pytest.mark.parametrize(("ending", "option"), [("csv", "--csv"), ("md", "--markdown")])
def test_rest_sends_the_files_that_the_command_prints(two, ending, option):
    found = client().get(f"/api/compare.{ending}", params={"runs": ",".join(two), "all_settings": "true"})
    assert found.text == told(*two, option, "--all-settings")
    assert found.headers["content-disposition"] == f'attachment; filename="comparison.{ending}"'


def test_rest_names_a_missing_run(two):
    found = client().get("/api/compare", params={"runs": f"{two[0]},nothing"})
    assert found.status_code == 404
    assert found.json()["error"]["value"] == "nothing"
