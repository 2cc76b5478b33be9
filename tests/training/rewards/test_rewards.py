"""Tests of rewards: what a text names, the built-in ones, and their weighted sum."""

import json
from importlib.util import find_spec

import pytest
from subtest_table import table

from training.errors import UserError
from training.rewards.built_in import REWARDS
from training.rewards.rewards import Reward, parse_rewards, total
from training.rewards.sample import Sample


def test_names_have_weights_and_a_list_has_options():
    assert parse_rewards("exact_match, own.py:city*0.5") == (
        Reward("exact_match"),
        Reward("own.py:city", 0.5),
    )
    text = json.dumps([{"name": "two", "reward": "length", "most": 2, "weight": -1}, "json_valid*2"])
    found = parse_rewards(text)
    assert found == (Reward("two", -1.0, {"most": 2}, "length"), Reward("json_valid", 2.0))
    assert parse_rewards(json.dumps([reward.document() for reward in found])) == found


@table(
    ("text", "message"),
    [
        ("", "is not NAME"),
        ("bleu", "is unknown. Rewards are exact_match"),
        ("exact_match*much", "has a weight that is not a number"),
        ("exact_match, exact_match", "is the name of two rewards"),
        ("length*nan", "is not the weight of length"),
        ("[]", "names 0 rewards"),
        ('[{"pattern": "a"}]', 'has no "reward"'),
        ("{", "is not valid JSON"),
        ('[{"reward": "json_valid", "weight": 1%s}]' % ("0" * 400), "is not the weight of json_valid"),
        ('[{"reward": "json_valid", "weight": 1e999}]', "is not the weight of json_valid"),
        ('[{"reward": "json_valid", "name": "\\ud800"}]', "cannot be stored"),
        ('[{"reward": "json_valid", "name": "\\u0000"}]', "cannot be stored"),
        ('[{"reward": "number_equal", "tolerance": -1}]', "is negative"),
        ("regex", "needs the option pattern"),
        ('[{"reward": "length", "mots": 3}]', "is no option of length. Its options are: least, most, unit, falloff"),
        ('[{"reward": "length", "most": true}]', "is not a whole number: length, option most"),
        ('[{"reward": "length", "unit": "lines"}]', "is not characters or words"),
        ('[{"reward": "length", "least": 3, "most": 2}]', "no answer has this length"),
        ('[{"reward": "json_fields", "fields": "city"}]', "is not a list of texts"),
        ('[{"reward": "judge", "url": "http://x"}]', "is wrong: judge, option model: Field required"),
    ],
)
def test_a_wrong_reward_is_refused_with_the_fix(text, message):
    with pytest.raises(UserError) as refused:
        parse_rewards(text)
    assert refused.value.problem.field == "rewards"
    assert message in str(refused.value)
    assert refused.value.fix


CALL = '{"name": "f", "arguments": {"a": 1, "b": true}}'
OPENAI = json.dumps([{"type": "function", "function": {"name": "f", "arguments": '{"b": true, "a": 1}'}}])


@table(
    ("name", "options", "answer", "expected", "score"),
    [
        ("exact_match", {}, " Berlin\n", "Berlin", 1),
        ("exact_match", {}, "berlin", "Berlin", 0),
        ("contains", {}, "It is Berlin.", "Berlin", 1),
        ("contains", {"ignore_case": True}, "it is BERLIN.", "Berlin", 1),
        ("contains", {"text": "sorry"}, "It is Berlin.", "Berlin", 0),
        ("contains", {}, "anything", "", None),
        ("number_equal", {}, "So it costs $1,234.50.", "1234.5", 1),
        ("number_equal", {}, "6 + 1 = 7", "#### 7", 1),
        ("number_equal", {}, "3.1", "3.14159", 0),
        ("number_equal", {"tolerance": 0.1}, "3.1", "3.14159", 1),
        ("number_equal", {}, "none", "3", 0),
        ("number_equal", {}, "3", "none", None),
        ("json_valid", {}, '{"a": [1]}', "", 1),
        ("json_valid", {}, "{'a': 1}", "", 0),
        ("json_valid", {}, "NaN", "", 0),
        ("json_valid", {}, "[" * 100_000, "", 0),
        ("json_fields", {}, '{"b": 2, "a": 1, "c": 0}', '{"a": 1, "b": 2}', 1),
        ("json_fields", {}, '{"a": 1, "b": 3}', '{"a": 1, "b": 2}', 0),
        ("json_fields", {"score": "share"}, '{"a": 1, "b": 3}', '{"a": 1, "b": 2}', 0.5),
        ("json_fields", {"fields": ["a"]}, '{"a": 1}', '{"a": 1, "b": 2}', 1),
        ("json_fields", {}, '{"a": true}', '{"a": 1}', 0),
        ("json_fields", {}, "no", '{"a": 1}', 0),
        ("json_fields", {}, '{"a": 1}', "no", None),
        ("length", {"most": 3}, "abc", "", 1),
        ("length", {"most": 2}, "abc", "", 0),
        ("length", {"least": 2, "unit": "words"}, "one", "", 0),
        ("length", {"most": 2, "unit": "words", "falloff": 2}, "a b c", "", 0.5),
        ("boxed", {}, r"so \boxed{ 7 }", "7", 1),
        ("boxed", {}, r"\boxed{1} then \boxed{\frac{1}{2}}", r"\boxed{\frac{1}{2}}", 1),
        ("boxed", {}, r"\boxed{1,000.0}", "1000", 1),
        ("boxed", {}, r"\boxed{8} and \boxed{7", "8", 1),
        ("boxed", {}, "7", "7", 0),
        ("boxed", {}, r"\boxed{" * 50_000, "7", 0),
        ("tool_call", {}, f"<tool_call>\n{CALL}\n</tool_call>", OPENAI, 1),
        ("tool_call", {}, f"{CALL}", CALL.replace("true", "1"), 0),
        ("tool_call", {}, f"[{CALL}, {CALL}]", CALL, 0),
        ("tool_call", {}, CALL, "no call", None),
    ],
)
def test_a_built_in_reward_scores_an_answer(name, options, answer, expected, score):
    assert REWARDS[name](Sample("p", answer, expected), **options) == score


@pytest.mark.skipif(find_spec("re2") is None, reason="google-re2 is not installed")
def test_a_pattern_that_backtracking_would_not_end_is_matched_in_linear_time():
    reward, *_ = parse_rewards('[{"reward": "regex", "pattern": "^(a*)*(a|aa)*$"}]')
    assert REWARDS["regex"](Sample("p", "a" * 1_000_000 + "b", ""), **reward.options) == 0
    assert REWARDS["regex"](Sample("p", "aaa", ""), pattern="a", match="whole") == 0
    with pytest.raises(UserError, match="no look-around"):
        parse_rewards('[{"reward": "regex", "pattern": "(?=a)"}]')


@pytest.mark.skipif(find_spec("math_verify") is None, reason="math-verify is not installed")
def test_boxed_answers_are_compared_as_mathematics_where_math_verify_is_installed():
    assert REWARDS["boxed"](Sample("p", r"\boxed{x + 1}", "1 + x")) == 1
    assert REWARDS["boxed"](Sample("p", r"\boxed{x + 2}", "1 + x")) == 0


@pytest.mark.skipif(find_spec("py3langid") is None, reason="py3langid is not installed")
def test_the_language_of_an_answer_is_a_probability():
    german = Sample("p", "Das ist ein Satz über zwei Hunde und eine Katze.", "")
    assert REWARDS["language"](german, code="de") > 0.9
    assert REWARDS["language"](german, code="en") < 0.1
    assert REWARDS["language"](Sample("p", "12", ""), code="en") is None
    with pytest.raises(UserError, match="is not a language; languages are "):
        parse_rewards('[{"reward": "language", "code": "zz"}]')


def test_the_total_is_the_weighted_sum_of_the_rewards_that_apply():
    rewards = (Reward("a", 2.0), Reward("b", -1.0))
    assert total(rewards, {"a": [1.0, None, None], "b": [0.5, 1.0, None]}) == [1.5, -1.0, None]
    assert total(rewards, {"a": [1e308, 1.0], "b": [-1e308, 0.0]}) == [None, 2.0]
