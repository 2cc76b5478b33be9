"""Tests of what an evaluation may ask for, and of metrics in a user's file."""

import pytest
from pydantic import ValidationError

from training.scoring.own_metric import MetricError, load, scored
from training.scoring.request import EvaluationRequest, Judge

RECORD = {"row": 4, "prompt": "p", "answer": "a b", "expected": "a"}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"metrics": ["bleu"]}, "'bleu' is unknown; metrics are exact_match"),
        ({"metrics": ["own.py:score"]}, "the code of own.py was not sent"),
        ({"metrics": ["judge"]}, "needs the judge's URL"),
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


def metric(tmp_path, code, name="score"):
    path = tmp_path / "own.py"
    path.write_text(code)
    return load(str(path), name, "own.py"), str(path)


def test_a_function_scores_prompt_answer_and_expected(tmp_path):
    function, path = metric(tmp_path, "def score(prompt, answer, expected):\n    return len(answer) / len(expected)\n")
    assert scored(function, RECORD, path, "own.py") == 3.0


def test_an_error_names_the_row_and_the_line(tmp_path):
    function, path = metric(tmp_path, "def score(prompt, answer, expected):\n    x = 0\n    return 1 / x\n")
    with pytest.raises(MetricError, match=r"^row 5, own.py, line 3: ZeroDivisionError: division by zero$"):
        scored(function, RECORD, path, "own.py")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def other(): pass", "own.py has no function score; its functions are: other"),
        ("x =", "own.py, line 1: SyntaxError"),
        ("import nothing_of_this_name", "own.py, line 1: ModuleNotFoundError"),
    ],
)
def test_a_file_that_cannot_be_used_says_why(tmp_path, code, message):
    with pytest.raises(MetricError, match=message):
        metric(tmp_path, code)


@pytest.mark.parametrize("value", ["'text'", "None", "float('nan')"])
def test_a_score_must_be_a_finite_number(tmp_path, value):
    function, path = metric(tmp_path, f"def score(prompt, answer, expected): return {value}")
    with pytest.raises(MetricError, match=r"row 5: own.py returned .* not a finite number"):
        scored(function, RECORD, path, "own.py")
