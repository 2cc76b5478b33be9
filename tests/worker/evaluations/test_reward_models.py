"""A reward model scores the rows of a trial and the answers of an evaluation, by programs of their own."""

import json

import pytest
from patience import eventually
from played_run import SUMMARY, PlayedRun
from supervised import started  # noqa: F401
from tiny import make_data, make_model, make_reward_model

from training.config.fields import ConfigError
from training.errors import UserError
from training.rewards.sample_rows import wanted_rows
from training.scoring.request import RECORDS_FILE
from worker.allowed_paths import EVERYTHING, allowed
from worker.evaluations import starting
from worker.evaluations.reward_trial import try_rewards
from worker.evaluations.submit import folder_of, submit
from worker.machine import overload
from worker.settings import get_settings
from worker.store import database, evaluations

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home", "started")]


@pytest.fixture
def scoring(tmp_path):
    """A run whose result is a reward model."""
    played = PlayedRun("scores", task="reward", method="full").claim("elsewhere/cpu1")
    played.end(summary=SUMMARY)
    make_reward_model(get_settings().runs_dir / played.id / "model")
    return played.id


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr(overload, "here", lambda: "")
    played = PlayedRun("tiny", model=str(make_model(tmp_path / "model")), max_new_tokens=4).claim("elsewhere/cpu2")
    return played.leave_result()


def reward(**options):
    return json.dumps({"reward": "model", **options})


def ended(item):
    with database.read() as session:
        one = evaluations.get(session=session, evaluation_id=item.id)
    return one if one.status.ended else None


def tried(text, rows, answers=None, paths=EVERYTHING):
    return try_rewards(text, {}, str(rows), columns=None, rows=3, answers=answers, allowed=paths)


def test_a_metric_of_an_evaluation_and_a_trial_on_its_answers_give_the_same_scores(run, scoring, tmp_path):
    rows = make_data(tmp_path / "rows.jsonl", rows=6)
    item = submit(run, {"source": "base", "metrics": ["exact_match", reward(run=scoring[:10])]}, data=str(rows))
    starting.start_waiting()
    done = eventually(lambda: ended(item), every=0.2)
    assert done.error is None and done.summary["metrics"]["model"]["rows"] == 6
    assert done.summary["metrics"]["model"]["unbounded"] and "unbounded" not in done.summary["metrics"]["exact_match"]
    records = [json.loads(line) for line in (folder_of(done) / RECORDS_FILE).read_text().splitlines()]
    scores = [record["scores"]["model"] for record in records]
    trial = tried(reward(run=scoring), rows, {record["row"]: record["answer"] for record in records})
    assert trial.values == {"model": pytest.approx(scores, abs=1e-5)} and trial.troubles == {}
    assert len({round(score, 6) for score in scores}) > 1


def test_a_trial_scores_expected_answers_beside_other_rewards_and_refuses_what_is_no_reward_model(scoring, tmp_path):
    rows = make_data(tmp_path / "rows.jsonl", rows=5)
    both = json.dumps([{"reward": "model", "run": scoring, "weight": 0.5}, "exact_match"])
    trial = tried(both, rows)
    assert [len(trial.values[name]) for name in ("model", "exact_match")] == [3, 3]
    assert trial.totals == pytest.approx([0.5 * score + 1 for score in trial.values["model"]])
    causal = make_model(tmp_path / "causal")
    for text, words in (
        (reward(model=str(causal)), "its architecture is LlamaForCausalLM"),
        (reward(run="0" * 12), "is no run"),
    ):
        with pytest.raises(ConfigError, match=words):
            tried(text, rows)
    with pytest.raises(ConfigError, match="allowed folder"):
        tried(reward(model=str(causal)), rows, paths=allowed())


def test_prompts_without_answers_are_scored_by_a_model_and_not_compared(run, scoring, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": f"count {n}: ", "level": n}) + "\n" for n in range(4)))
    with pytest.raises(ConfigError, match="prompts without one"):
        submit(run, {"source": "base"}, data=str(rows))
    with pytest.raises(ConfigError, match="without expected answers to score"):
        tried("json_valid", rows)
    item = submit(run, {"source": "base", "metrics": ["json_valid", reward(run=scoring)]}, data=str(rows))
    starting.start_waiting()
    done = eventually(lambda: ended(item), every=0.2)
    assert done.error is None and {name: one["rows"] for name, one in done.summary["metrics"].items()} == {
        "json_valid": 4,
        "model": 4,
    }


def test_an_evaluation_with_a_model_that_cannot_score_is_refused(run, tmp_path):
    rows = make_data(tmp_path / "rows.jsonl", rows=2)
    with pytest.raises(ConfigError) as refused:
        submit(run, {"source": "base", "metrics": [reward(run=run)]}, data=str(rows))
    (problem,) = refused.value.problems
    assert problem.field == "metrics" and problem.message == "config.json not found."


def test_reward_models_are_stored_with_their_absolute_path_and_whole_run_id(run, scoring, tmp_path, monkeypatch):
    rows = make_data(tmp_path / "rows.jsonl", rows=2)
    make_reward_model(tmp_path / "near")
    monkeypatch.chdir(tmp_path)
    metrics = ["f1", reward(model="near", max_length=64), reward(run=scoring[:10], name="r")]
    options = submit(run, {"source": "base", "metrics": metrics}, data=str(rows)).request["options"]
    assert options == {
        "model": {"reward": "model", "model": str(tmp_path / "near"), "max_length": 64},
        "r": {"name": "r", "reward": "model", "run": scoring},
    }


def test_a_trial_reads_no_row_after_its_last_and_names_a_row_that_cannot_be_read(scoring, tmp_path):
    rows = make_data(tmp_path / "rows.jsonl", rows=5)
    with rows.open("a") as stream:
        stream.write('{"prompt": 5}\n')
    assert len(tried(reward(run=scoring), rows).values["model"]) == 3
    asked = {"path": str(rows), "columns": None, "name": "rows.jsonl"}
    assert [number for number, _, _ in wanted_rows(asked, {1, 4})] == [1, 4]
    with pytest.raises(UserError, match="row 6 has the columns 'prompt'"):
        list(wanted_rows(asked, {5}))
