"""`lathe verify`: each form of a result beside what was trained."""

import json
import shutil
from pathlib import Path

import pytest
import warm
from commands import answer, lathe
from played_run import PlayedRun
from trained import RECIPES, copy_of, trained

from worker.settings import get_settings

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
VERIFIED = RECIPES["verified"]


@pytest.fixture
def run(home: Path, monkeypatch: pytest.MonkeyPatch) -> PlayedRun:
    warm.use_python(monkeypatch)
    model, data = VERIFIED.inputs
    played = PlayedRun("orders", model=str(model), data=str(data), **VERIFIED.settings).claim()
    copy_of(VERIFIED, get_settings().runs_dir / played.id)
    return played.end(summary=trained(VERIFIED).summary)


def test_forms_are_compared_and_the_verdict_is_kept(run: PlayedRun) -> None:
    found = answer("verify", run.id, "adapter", "merged", "served")
    assert found["equal"]
    assert [(name, form["rows"], form["answers_equal"]) for name, form in found["forms"].items()] == [
        ("adapter", 2, True),
        ("merged", 2, True),
        ("served", 2, True),
    ]


def test_a_form_that_differs_is_an_exit_code(run: PlayedRun) -> None:
    tokenizer = get_settings().runs_dir / run.id / "adapter" / "tokenizer.json"
    text = json.loads(tokenizer.read_text())
    text["normalizer"] = {"type": "Lowercase"}
    text["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
    tokenizer.write_text(json.dumps(text))
    done = lathe("verify", run.id, "adapter")
    assert done.exit_code == 1
    assert "prompt tokens differ" in done.output
    assert "in training" in done.output


def test_a_run_without_prompts_says_so(run: PlayedRun) -> None:
    shutil.rmtree(get_settings().runs_dir / run.id / "parity")
    done = lathe("verify", run.id)
    assert done.exit_code != 0
    assert "keeps no prompts to compare" in done.output + done.stderr
