"""The suite tells a well trained model from one that learned nothing, was trained for long on few rows, saw the held-out rows,
or has another chat template: real trainings of the starter example, evaluated by real supervisors."""

import json
import shutil

import pytest
from paths import ROOT
from played_run import PlayedRun
from suite_parts import carried_out
from supervised import started  # noqa: F401
from trainer_process import start

from app.documents.results import suites as document
from training.run_folder.paths import CONFIG_FILE, result_dir
from worker.machine import overload
from worker.settings import get_settings

pytestmark = [pytest.mark.train, pytest.mark.nightly, pytest.mark.usefixtures("home", "started")]

STARTER = ROOT / "static" / "starter"
WELL = {
    "max_steps": 75, "micro_batch_size": 16, "max_length": 256, "lora_r": 16, "lora_alpha": 32, "target_modules": "all-linear",
    "learning_rate": 0.003, "eval_split": 0, "eval_steps": 0, "verify_rows": 0, "seed": 1,
}  # fmt: skip
KINDS = {
    "starter": WELL | {"max_steps": 1, "learning_rate": 1e-7},
    "over-trained": WELL | {"max_samples": 12, "max_steps": 60, "learning_rate": 0.01},
    "leaked": WELL,
    "changed template": WELL,
    "well trained": WELL,
}
ORDER = json.loads((STARTER / "heldout.jsonl").read_text().splitlines()[0])["messages"][0]["content"]
SUITE = {
    "data": str(STARTER / "heldout.jsonl"), "rows": 24, "shots": 2, "metrics": ["exact_match"], "max_new_tokens": 64,
    "cases": [{"user": ORDER, "expect": "json_valid"}, {"user": ORDER, "expect": {"reward": "length", "most": 200}}],
}  # fmt: skip


def verdict(kind, folder):
    """The finished suite of a training in `folder`."""
    files = ["train", *(["heldout"] if kind == "leaked" else [])]
    data = folder.with_suffix(".jsonl")
    data.write_bytes(b"".join((STARTER / f"{name}.jsonl").read_bytes() for name in files))
    folder.mkdir()
    training = start(folder, STARTER, data, **KINDS[kind])
    assert training.finish() == 0, training.log()
    settings = json.loads((folder / CONFIG_FILE).read_text())
    run_id = PlayedRun(**settings | {"name": kind}).claim("elsewhere/cpu").leave_result()
    run_dir = get_settings().runs_dir / run_id
    shutil.rmtree(run_dir)
    shutil.copytree(folder, run_dir)
    if kind == "changed template":
        template = result_dir(run_dir, adapts=True) / "chat_template.jinja"
        template.write_text("Answer in a whole sentence.\n" + template.read_text())
    return carried_out(run_id, **SUITE)


CAUSES = {
    "starter": ("gain", "no difference"),
    "over-trained": ("overfitting", "points on 12 training rows"),
    "leaked": ("leak", "Leaked: 24 of 24 held-out rows are training rows"),
    "changed template": ("template", "Changed template: the result is saved with the template"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_well_trained_model_passes_and_the_cause_of_each_other_is_named(monkeypatch, tmp_path, kind):
    monkeypatch.setattr(overload, "here", lambda: "")
    found = verdict(kind, tmp_path / kind)
    assert [one.error for one in found.evaluations] == [None] * 6
    failed = {check.name: check.text for check in found.checks if check.state == document.FAILED}
    if kind == "well trained":
        assert (found.passed, failed) == (True, {})
        return
    name, text = CAUSES[kind]
    assert not found.passed and text in failed.get(name, ""), failed
    if kind in ("leaked", "changed template"):  # it learned as well as the last one: nothing else is wrong
        assert set(failed) == {name}
