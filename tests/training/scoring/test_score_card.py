"""What makes scores comparable: the fields of score cards, and the fingerprints of metrics."""

import pytest
from subtest_table import table

from training.scoring.fingerprints import fingerprints, of_judge
from training.scoring.request import EvaluationRequest
from training.scoring.score_card import ScoreCard, differences, of_metric

CARD = ScoreCard(
    data="a.jsonl", sha256="a", rows=40, decoding={"search": "greedy", "max_new_tokens": 64}, prompt={"template_sha256": "t"},
    metrics={"f1": "1", "judge": "2"}, judge={"model": "m", "prompt_sha256": "p"}, engine="transformers 5", dtype="float32",
    weights={"source": "base"},
)  # fmt: skip


@table(
    ("changed", "field", "first", "second"),
    [
        ({"sha256": "b"}, "sha256", "a", "b"),
        ({"columns": "prompt=x"}, "columns", None, "prompt=x"),
        ({"decoding": {"search": "greedy", "max_new_tokens": 8}}, "decoding.max_new_tokens", 64, 8),
        ({"prompt": {}}, "prompt.template_sha256", "t", None),
        ({"engine": "vllm"}, "engine", "transformers 5", "vllm"),
        ({"dtype": "bfloat16"}, "dtype", "float32", "bfloat16"),
    ],
)
def test_a_field_that_differs_is_named_with_both_values(changed, field, first, second):
    assert differences(CARD, CARD.model_copy(update=changed)) == [(field, first, second)]


@table(
    "changed", [{"data": "b.jsonl"}, {"rows": 8}, {"weights": {"source": "result"}}, {"metrics": {}}, {"judge": None}]
)
def test_names_rows_and_weights_make_no_difference_and_metrics_only_for_themselves(changed):
    assert differences(CARD, CARD.model_copy(update=changed)) == []


def test_another_metric_or_judge_makes_only_that_metric_incomparable():
    other = CARD.model_copy(
        update={"metrics": {"f1": "1", "judge": "2"}, "judge": {"model": "n", "prompt_sha256": "p"}}
    )
    assert of_metric(CARD, other, "judge") == [("judge.model", "m", "n")]
    assert of_metric(CARD, other, "f1") == []
    other = CARD.model_copy(update={"metrics": {"f1": "3", "judge": "2"}})
    assert of_metric(CARD, other, "f1") == [("metrics.f1", "1", "3")]


def of(**asked):
    return fingerprints(EvaluationRequest.model_validate(asked))


def own(code):
    return of(metrics=["own.py:score"], own={"own.py": code})["own.py:score"]


def test_the_fingerprint_of_own_code_changes_with_the_code_and_not_with_comments():
    first = own("def score(answer):\n    return len(answer)\n")
    assert own('def score(answer):\n    """Length."""\n    return len(answer)  # characters\n') == first
    assert own("def score(answer):\n    return len(answer) + 1\n") != first


def test_the_fingerprint_of_a_reward_changes_with_its_options_and_not_with_its_name():
    def length(**options):
        import json

        (found,) = of(metrics=[json.dumps({"reward": "length"} | options)]).values()
        return found

    assert length(most=5) == length(most=5, name="short") != length(most=6)


def test_every_metric_has_a_fingerprint_and_those_of_different_metrics_differ():
    metrics = ["exact_match", "f1", "rougeL", "contains", "json_valid", "boxed", "judge"]
    found = of(metrics=metrics, judge={"url": "http://j/v1", "model": "m"})
    assert list(found) == metrics
    assert len(set(found.values())) == len(metrics)


@pytest.mark.parametrize("values", [{"prompt": "Rate {answer}"}, {"model": "other"}, {"scale": 5}])
def test_a_judge_is_described_with_the_hash_of_its_prompt(values):
    judge = {"url": "http://j/v1", "model": "m"}
    asked = [EvaluationRequest.model_validate({"judge": judge | more}).judge for more in ({}, values)]
    assert of_judge(asked[0]) != of_judge(asked[1])
    assert of_judge(None) is None
