"""Texts that a user wrote are read within limits, whatever they contain."""

import pytest

from training.chat.template import syntax_problem
from training.config import json_text, yaml_text
from training.config.json_text import JsonTextError
from training.config.peft_methods import pattern_matches, pattern_problem
from training.config.yaml_text import YamlTextError

BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{after}: &{after} [{','.join(['*' + before] * 9)}]\n"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


def test_yaml_is_read_with_its_aliases() -> None:
    text = "usual: &usual {rank: 8, alpha: 16}\nfirst: *usual\nsecond: {<<: *usual, rank: 4}\n"
    assert yaml_text.load(text)["second"] == {"rank": 4, "alpha": 16}
    assert (yaml_text.load(""), yaml_text.load("[1, a, null]")) == (None, [1, "a", None])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (BOMB, "expand to"),
        ("a: &a [*a]", "contains itself"),
        ("[" * 20_000, "nesting"),
        ("- " * 5000, "nesting"),
        ("a: 2020-13-45", "month"),
        ("a: " + "1" * 5000, "digits"),
        ("a: !!python/object:os.system x", "constructor"),
        ("{a: b: c}", "line 1"),
        ("a: 1\n---\nb: 2", "single document"),
        ("a: \0", "not allowed"),
        ("\ud800: 1", "not allowed"),
        ("# " + "x" * 300_000, "characters"),
    ],
)
def test_yaml_beyond_a_limit_is_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(YamlTextError, match=reason):
        yaml_text.load(text)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nesting"),
        ("[" * 70 + "]" * 70, "nesting"),
        ('{"a": NaN}', "NaN"),
        ('{"a": -Infinity}', "Infinity"),
        ('{"a": 1e999}', "range"),
        ('{"a": 99999999999999999999}', "64 bits"),
        ('"\\ud800"', "surrogate"),
        ('{"\\ud800": 1}', "surrogate"),
        (b"\xff", "UTF-8"),
        ("{", "Expecting"),
        ("1" * 5000, "digits"),
    ],
)
def test_json_that_cannot_be_stored_is_refused_with_the_reason(text: str | bytes, reason: str) -> None:
    with pytest.raises(JsonTextError, match=reason):
        json_text.load(text)


def test_json_that_can_be_stored_is_read() -> None:
    assert json_text.load('{"a": [1, 2.5e300, "ü", null, true]}') == {"a": [1, 2.5e300, "ü", None, True]}


@pytest.mark.parametrize("pattern", [r".*\.(q|v)_proj", r"^(?!.*lm_head).*\.q_proj$", r"(([a-z._0-9])+)+q_proj"])
def test_patterns_match_whole_module_names(pattern: str) -> None:
    assert pattern_problem(pattern) is None
    assert pattern_matches(pattern, "model.layers.0.self_attn.q_proj")
    assert not pattern_matches(pattern, "model.layers.0.self_attn.k_proj")


@pytest.mark.parametrize(
    ("pattern", "reason"), [("[a", "not valid"), ("(" * 900, "nested|valid"), ("a" * 5000, "at most")]
)
def test_a_pattern_that_cannot_be_used_matches_nothing_and_says_why(pattern: str, reason: str) -> None:
    problem = pattern_problem(pattern)
    assert problem and any(word in problem for word in reason.split("|"))
    assert not pattern_matches(pattern, "a")


@pytest.mark.parametrize("pattern", ["(([a-z._0-9])+)+!", r"(.*)*\1x", "((a{1,1000}){1,1000}){1,1000}", "(?:.*?){30}="])
def test_a_pattern_with_nested_repetitions_is_answered(pattern: str) -> None:
    """Python's own engine takes longer than a day for the first."""
    assert not pattern_matches(pattern, "model.layers.0.self_attn.q_proj")


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 10**10 }}",
        "{{ 7**(3*10**7) }}",
        "{{ 'a' | center(9999999999) }}",
        "{% autoescape 'a' * 10**10 %}x{% endautoescape %}",
        "{% set text = 'a' * 10**10 %}{{ text }}",
        "{{ range(10**9) | list }}",
    ],
)
def test_the_syntax_of_a_template_is_checked_without_computing_its_constants(source: str) -> None:
    assert syntax_problem(source) is None
