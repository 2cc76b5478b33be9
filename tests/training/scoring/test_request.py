"""Tests of what an evaluation may ask for."""

import pytest
from pydantic import ValidationError

from training.rewards.judge import Judge
from training.scoring.request import EvaluationRequest

LENGTH = '{"reward": "length", "most": 9}'
NAMED = '{"name": "%s", "reward": "model", "model": "/models/reward"}'
JUDGE = '{"reward": "judge", "url": "http://x", "model": "m"}'


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics": ["bleu"]}, "'bleu' is unknown; metrics are exact_match"),
        ({"metrics": ["own.py:score"]}, "the code of own.py was not sent"),
        ({"metrics": ["judge"]}, "needs the judge's URL"),
        ({"metrics": ['{"reward": "bleu"}']}, "'bleu' is unknown; metrics are exact_match"),
        ({"metrics": ['{"reward": 3}']}, 'has no "reward"'),
        ({"metrics": ['{"reward": "number_equal", "tolerance": NaN}']}, "it has NaN, which is not a JSON number"),
        ({"metrics": ['{"reward": "regex", "pattern": "\\ud800"}']}, "it has a lone surrogate"),
        ({"metrics": [LENGTH, LENGTH.replace("9", "5")]}, "length is the name of two"),
        ({"metrics": ["f1", NAMED % "f1"]}, "f1 is the name of two"),
        ({"metrics": [NAMED % "f1"]}, "f1 is the name of two"),
        ({"metrics": [NAMED % "judge"]}, "judge is the name of two"),
        ({"metrics": ["judge", JUDGE], "judge": {"url": "http://x", "model": "m"}}, "judge is the name of two"),
        ({"metrics": ['{"reward": "judge", "url": "http://x"}']}, r"judge.model\s+Field required"),
        ({"source": "checkpoint"}, "result, base or checkpoint-N"),
        ({"rows": 0}, "greater than or equal to 1"),
    ],
)
def test_a_wrong_request_says_what_is_allowed(values, message):
    with pytest.raises(ValidationError, match=message):
        EvaluationRequest.model_validate(values)


def test_a_judge_needs_the_answer_in_its_prompt_and_fills_only_its_own_placeholders():
    with pytest.raises(ValidationError, match=r"has no \{answer\}"):
        Judge(url="http://x", model="m", prompt="Rate {expected}")
    judge = Judge(url="http://x", model="m", prompt='{prompt}|{answer}|{expected}|{"score": 1}')
    assert judge.filled("{answer}", "{expected}", "e") == '{answer}|{expected}|e|{"score": 1}'


def test_a_metric_is_a_reward_by_name_by_function_or_as_json_with_options():
    long = '{"name": "short", "reward": "length", "most": 9}'
    values = {"metrics": ["f1", "exact_match", "json_valid", "own.py:score", long], "own": {"own.py": ""}}
    request = EvaluationRequest.model_validate(values)
    assert request.built_in == ["f1", "exact_match"]
    assert request.metrics[-1] == "short"
    assert [(reward.name, reward.kind, reward.options) for reward in request.rewards] == [
        ("json_valid", "json_valid", {}),
        ("own.py:score", "own.py:score", {}),
        ("short", "length", {"most": 9}),
    ]
    assert EvaluationRequest.model_validate(request.model_dump(mode="json")) == request


def test_a_judge_as_json_without_a_name_is_the_judge_of_the_evaluation():
    request = EvaluationRequest.model_validate({"metrics": ["f1", JUDGE]})
    assert (request.metrics, request.judge, request.options) == (("f1", "judge"), Judge(url="http://x", model="m"), {})
    assert EvaluationRequest.model_validate(request.model_dump(mode="json")) == request
