"""Suites by real supervisors and the real program on a tiny model: what is kept, and the cause of what is not."""

import json
import shutil

import pytest
from played_run import PlayedRun
from safetensors.torch import load_file, save_file
from suite_parts import carried_out
from supervised import started  # noqa: F401
from tiny import make_data, make_model

from worker.machine import overload
from worker.settings import get_settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home", "started")]
CASES = [
    {"user": "count 3: "},
    {"user": "abc", "mode": "text"},
    {"user": "x", "expect": {"reward": "length", "least": 1}},
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run with whole weights, which are those of its base, and the folder of its result."""
    monkeypatch.setattr(overload, "here", lambda: "")
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "train.jsonl", rows=6)
    played = PlayedRun("tiny", model=str(model), data=str(data), method="full", max_new_tokens=4).claim("elsewhere/cpu")
    run = played.leave_result()
    folder = get_settings().runs_dir / run
    shutil.rmtree(folder / "adapter")
    shutil.copytree(model, folder / "model")
    return run, folder / "model", data


def failed(found):
    return {check.name: check.text for check in found.checks if check.state == "failed"}


def test_a_result_that_answers_as_its_base_keeps_every_case_and_one_that_has_moved_away_is_over_trained(run):
    run_id, model, _ = run
    found = carried_out(run_id, cases=CASES)
    assert [one.error for one in found.evaluations] == [None]
    assert (found.passed, found.verdicts) == (True, {"kept": 3, "fixed": 0, "broken": 0, "failing": 0})
    assert [check.name for check in found.checks] == ["template", "forgetting", "text"]
    weights = load_file(model / "model.safetensors")
    weights["lm_head.weight"] *= -300
    save_file(weights, model / "model.safetensors", {"format": "pt"})
    found = carried_out(run_id, cases=CASES)
    assert not found.passed and found.verdicts["broken"] >= 1
    assert "Over-trained" in failed(found)["forgetting"]


def test_a_changed_template_is_the_cause_that_is_named(run):
    run_id, model, _ = run
    template = model / "chat_template.jinja"
    template.write_text("Be brief. " + template.read_text())
    found = carried_out(run_id, cases=CASES)
    assert failed(found)["template"].startswith("Changed template")


def test_held_out_rows_that_were_trained_on_are_named_as_leaked_and_the_base_answers_with_shots(run):
    run_id, _, data = run
    found = carried_out(run_id, data=str(data), shots=2, metrics=["exact_match"], rows=4)
    assert [one.error for one in found.evaluations] == [None] * 5
    assert failed(found)["leak"].startswith("Leaked: 4 of 4 held-out rows are training rows")
    assert [(one.source, one.shots, one.card.weights.get("shots")) for one in found.evaluations] == [
        ("result", 0, None), ("base", 0, None), ("base", 2, 2), ("result", 0, None), ("base", 0, None),
    ]  # fmt: skip
    folder = get_settings().runs_dir / run_id / "evaluations" / found.evaluations[2].id
    first, *_ = [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    assert all(row["completion"].strip() in first["prompt"] for row in rows[:2])
