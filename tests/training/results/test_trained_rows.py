"""The rows that a run has trained on, as an evaluation draws them again."""

import json

import pytest
from tiny import make_model

from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import load_tokenizer
from training.reports.report import Report
from training.results.evaluate import ask
from training.results.trained_rows import trained_rows
from training.scoring.request import EvaluationRequest
from training.trainer.prepare import prepare_data

ROWS = [{"prompt": f"count {number}: ", "completion": f"{number + 1}"} for number in range(40)]


def drawn(tmp_path, rows=ROWS, metrics=("exact_match",), most=10, **settings):
    """The numbers of the rows that a run trains on, and the questions of an evaluation of some; the data has moved since."""
    tmp_path.mkdir(exist_ok=True)
    old, new = tmp_path / "old.jsonl", tmp_path / "new.jsonl"
    for path in (old, new):
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    values = {"model": str(make_model(tmp_path / "model")), "data": str(old), "eval_split": 0.25} | settings
    config = RunConfig.model_validate(values)
    tokenizer = load_tokenizer(config)
    run_dir = tmp_path / "run"
    folder = run_dir / "evaluation"
    folder.mkdir(parents=True)
    trained = prepare_data(config, run_dir, tokenizer, Report(run_dir, rank=0)).train
    old.unlink()
    request = EvaluationRequest(of_training=True, rows=most, metrics=metrics, training=((str(new), None, "new"),))
    found = trained_rows(config, request, run_dir, folder, tokenizer)
    numbers = set(range(10, 40)) if config.streaming else {int(row) for row in trained.rows}
    return numbers, found, ask(config, request, tokenizer, found)


@pytest.mark.parametrize(
    "settings", [{}, {"max_samples": 12}, {"data_slice": "20"}, {"streaming": True, "max_steps": 2}]
)
def test_they_are_those_that_the_run_trains_on_as_many_as_are_asked_for(tmp_path, settings):
    everything, found, questions = drawn(tmp_path, most=8, **settings)
    assert len(questions) == 8 and {question.row for question in questions} < everything
    assert found.total == len(everything)
    assert all(question.expected == str(question.row + 1) for question in questions)


def test_fewer_rows_than_are_asked_for_are_all_of_them(tmp_path):
    everything, found, questions = drawn(tmp_path, most=500)
    assert {question.row for question in questions} == everything == found.numbers


def test_prompts_alone_have_no_answer_that_metrics_could_compare_with(tmp_path):
    prompts = [{"prompt": row["prompt"]} for row in ROWS]
    sampling = {"task": "grpo", "rewards": "json_valid", "rows": prompts}
    assert len(drawn(tmp_path, metrics=("json_valid",), **sampling)[2]) == 10
    with pytest.raises(UserError, match="has no rows with a prompt"):
        drawn(tmp_path / "compared", **sampling)
