"""Graders of OpenAI's API as rewards."""

import json
import time

import pytest
from subtest_table import table

from training.errors import UserError
from training.rewards.built_in import REWARDS
from training.rewards.rewards import parse_rewards
from training.rewards.sample import Sample
from worker.fine_tuning.graders import rewards_of

CHECK = {"type": "string_check", "input": "{{sample.output_text}}", "reference": "{{item.answer}}", "operation": "eq"}
SIMILAR = {
    "type": "text_similarity",
    "input": "{{sample.output_text}}",
    "reference": "{{item.answer}}",
    "evaluation_metric": "rouge_l",
}
JSON_ANSWER = '{"city": "Rome", "stops": [{"at": 3}], "open": true, "none": null}'


def score(answer, row, kind="string_check", **options):
    return REWARDS[kind](Sample("", answer, "", row), **options)


@table(
    ("expected", "answer", "row", "options"),
    [
        (1, "Rome", {"a": "Rome"}, {"reference": "{{item.a}}"}),
        (0, "Rome ", {"a": "Rome"}, {"reference": "{{item.a}}"}),
        (0, "rome", {"a": "Rome"}, {"reference": "{{ item.a }}", "operation": "eq"}),
        (1, "rome", {"a": "Rome"}, {"reference": "{{item.a}}", "operation": "ne"}),
        (1, "to Rome now", {"a": "Rome"}, {"reference": "{{item.a}}", "operation": "like"}),
        (0, "to rome now", {"a": "Rome"}, {"reference": "{{item.a}}", "operation": "like"}),
        (1, "to rome now", {"a": "Rome"}, {"reference": "{{item.a}}", "operation": "ilike"}),
        (1, JSON_ANSWER, {"a": "Rome"}, {"input": "{{sample.output_json.city}}", "reference": "{{item.a}}"}),
        (1, JSON_ANSWER, {"a": 3}, {"input": "{{sample.output_json.stops.0.at}}", "reference": "{{item.a}}"}),
        (1, JSON_ANSWER, {"a": True}, {"input": "{{sample.output_json.open}}", "reference": "{{item.a}}"}),
        (0, JSON_ANSWER, {"a": "x"}, {"input": "{{sample.output_json.none}}", "reference": "{{item.a}}"}),
        (0, "not JSON", {"a": "Rome"}, {"input": "{{sample.output_json.city}}", "reference": "{{item.a}}"}),
        (None, "Rome", {}, {"reference": "{{item.a}}"}),
        (1, "In Rome: 3", {"a": {"b": ["Rome", 3]}}, {"reference": "In {{item.a.b.0}}: {{item.a.b.1}}"}),
        (1, "{{item.b}}", {"a": "{{item.b}}", "b": "x"}, {"reference": "{{item.a}}"}),
    ],
)  # fmt: skip
def test_a_text_is_compared_with_a_template_of_the_row(expected, answer, row, options):
    assert score(answer, row, **options) == expected


@table(
    (
        "metric",
        "expected",
    ),  # by Lin (2004): five of six words, in order; three of five pairs; one of four runs of three
    [
        ("rouge_1", 10 / 12),
        ("rouge_2", 6 / 10),
        ("rouge_3", 2 / 8),
        ("rouge_4", 0),
        ("rouge_5", 0),
        ("rouge_l", 10 / 12),
    ],
)
def test_similarity_is_that_of_rouge(metric, expected):
    row = {"a": "The cat was on the mat"}
    options = {"reference": "{{item.a}}", "evaluation_metric": metric}
    assert score("the cat sat on the mat.", row, "text_similarity", **options) == pytest.approx(expected)
    assert score("", row, "text_similarity", **options) == 0
    long = {"a": "a b " * 100_000}  # of 200,000 words, the first 2,000 are compared by ROUGE-L
    assert score(long["a"], long, "text_similarity", **options) == 1


def test_a_sum_of_graders_is_rewards_with_weights():
    multi = {"type": "multi", "graders": {"a": CHECK, "b": SIMILAR}, "calculate_output": "0.5 * a - b/4"}
    entries, code = rewards_of(multi, "grader")
    assert [(one["name"], one["weight"]) for one in entries] == [("a", 0.5), ("b", -0.25)] and code == ""
    assert [reward.name for reward in parse_rewards(json.dumps(entries))] == ["a", "b"]


def test_a_function_of_an_owner_is_called_with_sample_and_item():
    [entry], code = rewards_of(
        {"type": "python", "source": "def grade(sample, item):\n    return len(sample['output_text'])"}, "g"
    )
    space: dict = {}
    exec(code, space)
    assert space[entry["reward"]]("p", "abc", "", {}) == 3


@table(
    ("field", "grader"),
    [
        ("g.type", {"type": "label_model"}),
        ("g.type", {}),
        ("g.operation", CHECK | {"operation": "contains"}),
        ("g.input", CHECK | {"input": ["a"]}),
        ("g.reference", CHECK | {"reference": "x" * 10_001}),
        ("g.reference", {name: value for name, value in CHECK.items() if name != "reference"}),
        ("g.evaluation_metric", SIMILAR | {"evaluation_metric": "cosine"}),
        ("g.source", {"type": "python", "source": "print(1)"}),
        ("g.graders", {"type": "multi", "graders": [], "calculate_output": "a"}),
        ("g.graders.a.type", {"type": "multi", "graders": {"a": 3}, "calculate_output": "a"}),
        ("g.graders.a.type", {"type": "multi", "graders": {"a": {"type": "multi"}}, "calculate_output": "a"}),
        ("g.graders.b", {"type": "multi", "graders": {"a": CHECK, "b": CHECK}, "calculate_output": "a"}),
        *(
            ("g.calculate_output", {"type": "multi", "graders": {"a": CHECK}, "calculate_output": formula})
            for formula in ("b", "a * a", "a + a", "(a)", "min(a, 1)", "", 3, "a +", "a 0.5", "2 ** a")
        ),
    ],
)  # fmt: skip
def test_what_lathe_does_not_compute_is_named(field, grader):
    with pytest.raises(UserError) as refused:
        rewards_of(grader, "g")
    assert refused.value.problem.field == field and refused.value.problem.fix


@table("template", ["{{sample.output}}", "{{ row.a }}", "{{item}}", "{{item.a b}}"])
def test_a_placeholder_that_means_nothing_is_named(template):
    with pytest.raises(UserError, match="placeholder"):
        parse_rewards(json.dumps([{"reward": "string_check", "reference": template}]))


def test_braces_without_end_take_no_time():
    began = time.process_time()
    with pytest.raises(UserError):
        parse_rewards(json.dumps([{"reward": "string_check", "reference": "{{" * 500_000 + "{{x}}"}]))
    assert time.process_time() - began < 1
