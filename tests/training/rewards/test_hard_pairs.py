"""Hard pairs of an answer and the expected text, with the right score of each built-in reward."""

import json

from subtest_table import table

from training.data.example import Example
from training.rewards.built_in import REWARDS
from training.rewards.sample import Sample
from training.rewards.sample_rows import texts

RIGHT, WRONG = 1.0, 0.0

# Numbers are read as people write them: with the separators of English, German, French, Swiss and Indian, exactly, and
# in any script's digits. The last one counts, as in GSM8K's "#### 7".
NUMBERS = [
    ("42", "42", RIGHT),
    ("", "42", WRONG),
    ("none", "42", WRONG),
    ("42", "none", None),
    ("The answer is 42.", "42", RIGHT),
    ("1,000", "1000", RIGHT),
    ("1,234,567.89 EUR", "1234567.89", RIGHT),
    ("1.234.567,89 EUR", "1234567.89", RIGHT),
    ("1.000.000", "1000000", RIGHT),
    ("1.500", "1500", WRONG),
    ("12,34,567", "1234567", RIGHT),
    ("1,0000,0000", "100000000", RIGHT),
    ("1,2345", "12345", WRONG),  # or 1.2345
    ("1,2345", "1.2345", WRONG),
    ("1 1/2", "1.5", RIGHT),
    ("1 1/2 cups", "1/2", WRONG),
    ("-2 3/4", "-2.75", RIGHT),
    ("1\u00bd", "1.5", RIGHT),
    ("1 \u00bd", "1.5", RIGHT),
    ("1\u00bd", "1", WRONG),
    ("\u2153", "1/3", RIGHT),
    ("5 7/2", "3.5", RIGHT),
    ("1 234 1/2", "0.5", RIGHT),
    ("7 or 1,2345", "7", WRONG),
    ("12345", "1,2345", None),
    ("0,1234", "0.1234", RIGHT),
    ("12345,6789", "12345.6789", RIGHT),
    (r"20,\!000", r"10,\!000", WRONG),
    (r"\boxed{10,\!000}", "10,000", RIGHT),
    (r"\boxed{5{,}234}", r"1{,}234", WRONG),
    (r"1\,234\,567", "1234567", RIGHT),
    ("1,5", "1.5", RIGHT),
    ("0,125", "0.125", RIGHT),
    ("1,5", "15", WRONG),
    ("1, 2, 3", "3", RIGHT),
    ("1,2,3", "3", RIGHT),
    ("1 000", "1000", RIGHT),
    ("2 000", "1 000", WRONG),
    ("6\u00a0000", "5\u00a0000", WRONG),
    ("2\u202f000", "2000", RIGHT),
    ("2'000", "1'000", WRONG),
    ("2\u2019000", "2000", RIGHT),
    ("1_000", "1000", RIGHT),
    ("in 2024, 300 people", "300", RIGHT),
    ("-5", "-5", RIGHT),
    ("\u22125", "-5", RIGHT),
    ("\u22125", "5", WRONG),
    ("5-3", "3", RIGHT),
    ("(5)-3", "3", RIGHT),
    ("x = -3", "-3", RIGHT),
    ("10-12", "12", RIGHT),
    ("2026-11-28", "28", RIGHT),
    ("28/11/2026", "2026", RIGHT),
    ("3/4", "3/4", RIGHT),
    ("1/4", "3/4", WRONG),
    ("3/4", "0.75", RIGHT),
    ("3/4", "4", WRONG),
    ("7/0", "7", WRONG),
    ("5/0", "0", WRONG),
    ("0", "5/0", None),
    ("50%", "50", RIGHT),
    ("$1,234.50", "1234.5", RIGHT),
    (".5", "0.5", RIGHT),
    ("x=3.", "3", RIGHT),
    ("1e3", "1000", RIGHT),
    ("1e-10", "0", RIGHT),
    ("id 1e5e5", "7", WRONG),
    ("sha 9f3e7e2b", "7", WRONG),
    ("7", "sha 9f3e7e2b", WRONG),
    ("v 1.5.e3", "7", WRONG),
    ("1.2.3", "3", RIGHT),
    ("1e9999", "2e9999", None),
    ("1e9999", "2", WRONG),
    ("9" * 5000, "7", WRONG),
    ("123456789012345678", "123456789012345679", WRONG),
    ("0.1", "0.10", RIGHT),
    ("\uff11\uff12", "12", RIGHT),
    ("٣", "3", RIGHT),
    ("三", "3", WRONG),
    ("NaN", "5", WRONG),
    ("inf", "5", WRONG),
]


@table(("answer", "expected", "score"), NUMBERS)
def test_the_last_number_of_an_answer_equals_the_expected_one(answer, expected, score):
    assert REWARDS["number_equal"](Sample("", answer, expected)) == score


# RFC 8259.
JSON = [
    ("{}", RIGHT),
    ("-0", RIGHT),
    ("1e400", RIGHT),
    ("1" * 5000, RIGHT),
    ("[" * 5000 + "]" * 5000, RIGHT),
    ('{"a":' * 3000 + "[1, null]" + "}" * 3000, RIGHT),
    ('{"a":1,"a":2}', RIGHT),
    ('"\\ud800"', RIGHT),
    ("", WRONG),
    (" ", WRONG),
    ("NaN", WRONG),
    ('{"a": Infinity}', WRONG),
    ("01", WRONG),
    ('{"a":1,}', WRONG),
    ("[1 2]", WRONG),
    ("{} {}", WRONG),
    ("{'a':1}", WRONG),
    ('"\x01"', WRONG),
    ("\ufeff{}", WRONG),
    ("\u00a0{}", WRONG),
    ("[" * 5000 + "]" * 4999, WRONG),
    ("[" * 5000 + "}" * 5000, WRONG),
    ("[" * 5000 + "," + "]" * 5000, WRONG),
    ("```json\n{}\n```", WRONG),
]


@table(("answer", "score"), JSON)
def test_an_answer_is_json_of_any_depth_and_length_of_integers(answer, score):
    assert REWARDS["json_valid"](Sample("", answer, "")) == score


# JSON values are equal as values: 1.0 is 1, true is not 1, and numbers are exact.
FIELDS = [
    ('{"b":2,"a":1}', '{"a":1,"b":2}', RIGHT),
    ('{"a":1.0}', '{"a":1}', RIGHT),
    ('{"a":true}', '{"a":1}', WRONG),
    ('{"a":"1"}', '{"a":1}', WRONG),
    ('{"a":1,"x":9}', '{"a":1}', RIGHT),
    ('{"a":2,"a":1}', '{"a":1}', RIGHT),
    ("{}", '{"a":null}', WRONG),
    ('{"a":null}', '{"a":null}', RIGHT),
    ('{"a":9007199254740993}', '{"a":9007199254740992}', WRONG),
    ('{"a":9007199254740993}', '{"a":9007199254740992.0}', WRONG),
    ('{"a":1e400}', '{"a":2e400}', WRONG),
    ('{"a":0.30000000000000004}', '{"a":0.3}', WRONG),
    ('{"a":{"y":1,"x":[1,2]}}', '{"a":{"x":[1,2],"y":1}}', RIGHT),
    ('{"a":[2,1]}', '{"a":[1,2]}', WRONG),
    ("[]", '{"a":1}', WRONG),
    ('{"a":1}', "[1]", None),
]


@table(("answer", "expected", "score"), FIELDS)
def test_the_fields_of_an_answer_equal_the_expected_ones(answer, expected, score):
    assert REWARDS["json_fields"](Sample("", answer, expected)) == score


BOXES = [
    (r"\boxed{3}", "3", RIGHT),
    (r"\\boxed{5}", "5", RIGHT),
    (r"\boxed{2} then \boxed{3}", "3", RIGHT),
    (r"\boxed{\boxed{3}}", "3", RIGHT),
    (r"\fbox{7}", "7", RIGHT),
    (r"\boxed {$7$}", "7", RIGHT),
    (r"\boxed{7.0}", "7", RIGHT),
    ("\\boxed{-7}", "\u22127", RIGHT),
    (r"\boxed{10 000}", "10000", RIGHT),
    (r"\boxed{12 34}", "1234", WRONG),
    (r"\boxed{a b}", "ab", WRONG),
    (r"\boxed{x}", "X", WRONG),
    (r"\boxed{x+1}", "x + 1", RIGHT),
    (r"\boxed{\frac{1}{2}}", r"\boxed{\frac{1}{2}}", RIGHT),
    (r"\boxed{1000}", "work #### 1,000", RIGHT),
    (r"\boxed{1e5e5}", "7", WRONG),
    (r"\boxed{3", "3", WRONG),
    ("3", "3", WRONG),
    (r"\boxed{}", r"\boxed{}", None),
    (r"\boxed{}", "", None),
]


@table(("answer", "expected", "score"), BOXES)
def test_the_last_box_of_an_answer_equals_the_expected_one(answer, expected, score):
    assert REWARDS["boxed"](Sample("", answer, expected)) == score


def call(name, arguments):
    return json.dumps({"name": name, "arguments": arguments})


# OpenAI's chat completions: arguments are a text that is usually JSON; a function without parameters may have "" or null.
CALLS = [
    (call("f", {"b": 1, "a": 2}), call("f", {"a": 2, "b": 1}), RIGHT),
    (call("f", '{"a": 1}'), call("f", {"a": 1}), RIGHT),
    (call("f", {"n": 1.0}), call("f", {"n": 1}), RIGHT),
    (call("f", {"n": True}), call("f", {"n": 1}), WRONG),
    (call("f", ""), call("f", {}), RIGHT),
    (call("f", None), call("f", {}), RIGHT),
    ('{"name": "f"}', call("f", {}), RIGHT),
    (call("run", "ls -la"), call("run", "rm -rf /"), WRONG),
    (call("run", "ls -la"), call("run", "ls -la"), RIGHT),
    (call("f", "{broken"), call("f", "also not json"), WRONG),
    (call("g", {}), call("f", {}), WRONG),
    ("<tool_call>" + call("f", {"a": 1}) + "</tool_call>", call("f", {"a": 1}), RIGHT),
    ("First. <tool_call>" + call("f", {}) + "</tool_call> Then.", call("f", {}), RIGHT),
    ("<tool_call>" + call("f", {}) + "</tool_call><tool_call>bad</tool_call>", call("f", {}), WRONG),
    ("```json\n" + call("f", {}) + "\n```", call("f", {}), RIGHT),
    (f"[{call('g', {})}, {call('f', {})}]", f"[{call('f', {})}, {call('g', {})}]", RIGHT),
    (call("f", {}), f"[{call('f', {})}, {call('f', {})}]", WRONG),
    ('{"name": "f", "parameters": {"a": 1}}', call("f", {"a": 1}), RIGHT),
    ('{"tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}', call("f", {}), RIGHT),
    ("", call("f", {}), WRONG),
    ("I call " + call("f", {}), call("f", {}), WRONG),
    (call("f", {}), "No tool is needed.", None),
]


@table(("answer", "expected", "score"), CALLS)
def test_the_calls_of_an_answer_equal_the_expected_ones(answer, expected, score):
    assert REWARDS["tool_call"](Sample("", answer, expected)) == score


TEXTS = [
    ("contains", {}, "a.b", "a.b", RIGHT),
    ("contains", {}, "axb", "a.b", WRONG),
    ("contains", {"ignore_case": True}, "STRASSE", "straße", RIGHT),
    ("contains", {}, "x", "  ", None),
    ("contains", {}, "12", "1", RIGHT),
    ("exact_match", {}, "\u00a0Berlin\n", "Berlin", RIGHT),
    ("exact_match", {}, "Berlin.", "Berlin", WRONG),
    ("regex", {"pattern": "^(a|a)*b$"}, "aab", "", RIGHT),
    ("regex", {"pattern": "a", "match": "whole"}, "a\n", "", WRONG),
    ("regex", {"pattern": "a.b"}, "a\nb", "", WRONG),
    ("regex", {"pattern": r"\p{Han}+", "match": "whole"}, "中文", "", RIGHT),
    ("regex", {"pattern": "x"}, "\ud800", "", WRONG),
    ("regex", {"pattern": "", "match": "whole"}, "", "", RIGHT),
    ("length", {"most": 3}, "abc", "", RIGHT),
    ("length", {"most": 3}, "abcd", "", WRONG),
    ("length", {"most": 3, "falloff": 2}, "abcd", "", 0.5),
    ("length", {"least": 2, "falloff": 2}, "x", "", 0.5),
    ("length", {"most": 3, "unit": "words"}, "a b  c", "", RIGHT),
    ("length", {"most": 3, "unit": "words"}, "中文没有空格", "", WRONG),
    ("length", {"most": 6, "unit": "words"}, "中文没有空格", "", RIGHT),
]


@table(("name", "options", "answer", "expected", "score"), TEXTS)
def test_a_text_is_compared_as_it_is(name, options, answer, expected, score):
    assert REWARDS[name](Sample("", answer, expected), **options) == score


def test_the_expected_text_of_a_row_in_openai_s_form_has_its_calls():
    turns = [
        {"role": "user", "content": "go"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}],
        },
    ]
    _, expected = texts(Example(messages=turns))
    assert REWARDS["tool_call"](Sample("", call("f", {"a": 1}), expected)) == RIGHT
    assert REWARDS["tool_call"](Sample("", "", expected)) == WRONG


def test_a_prompt_of_several_turns_names_their_roles():
    turns = [
        {"role": role, "content": text} for role, text in (("system", "be brief"), ("user", "a"), ("assistant", "b"))
    ]
    assert texts(Example(messages=turns)) == ("system: be brief\n\nuser: a", "b")
    assert texts(Example(messages=turns[1:])) == ("a", "b")
