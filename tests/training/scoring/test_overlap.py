"""Tests of the overlap between training and evaluation rows."""

import io
import json
import sys

from subtest_table import table

from training.data.example import Example
from training.scoring.overlap import main, overlap, overlapping

LONG = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"


def rows(*pairs):
    return [Example(prompt=prompt, answer=answer) for prompt, answer in pairs]


def test_equal_rows_and_equal_prompts_are_counted_without_case_and_punctuation_after_words():
    found = overlap(
        rows(("Capital of France?", "Paris"), ("2 + 2", "4"), ("new", "x")),
        rows(("capital of  FRANCE", "Paris."), ("2 + 2", "5")),
    )
    assert (found.rows, found.training_rows, found.equal, found.same_prompt, found.shared_words) == (3, 2, 1, 2, 0)
    assert found.examples == [1, 2]


@table(
    ("one", "other"),
    [("2 + 2", "2 * 2"), ("a != b", "a == b"), ("5!", "5"), ("\U0001f600", "\U0001f680"), ("की", "का")],
)
def test_rows_that_differ_in_signs_emoji_or_vowels_are_not_equal(one, other):
    found = overlap(rows((one, "yes")), rows((other, "yes")))
    assert (found.equal, found.same_prompt) == (0, 0)


def test_accents_are_equal_however_they_are_encoded():
    assert overlap(rows(("caf\u00e9", "ja")), rows(("cafe\u0301", "ja"))).equal == 1


def test_calls_of_other_tools_are_other_rows():
    def chat(name):
        call = {"type": "function", "function": {"name": name, "arguments": "{}"}}
        turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "", "tool_calls": [call]}]
        return [Example(messages=turns)]

    assert overlap(chat("get_weather"), chat("delete_all")).equal == 0
    assert overlap(chat("get_weather"), chat("get_weather")).equal == 1


def test_26_shared_characters_of_a_script_without_spaces_are_found_and_25_are_not():
    text = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳"
    training = rows((f"先说{text}再说", "a"))
    assert overlap(rows((f"问{text[:26]}吗", "b")), training).shared_words == 1
    assert overlap(rows((f"问{text[:25]}吗", "b")), training).shared_words == 0


def test_13_shared_words_within_longer_texts_are_found_and_12_are_not():
    thirteen, twelve = " ".join(LONG.split()[:13]), " ".join(LONG.split()[:12])
    training = rows((f"before {LONG} after", "a"))
    assert overlap(rows((f"other {thirteen} end", "b")), training).shared_words == 1
    assert overlap(rows((f"other {twelve} end", "b")), training).shared_words == 0


def test_words_that_most_evaluation_rows_share_do_not_count():
    evaluation = rows(*((f"{LONG} question {number}", str(number)) for number in range(30)))
    assert overlap(evaluation, rows((f"{LONG} something else", "x"))).shared_words == 0


def test_system_prompts_do_not_count():
    def chat(question):
        turns = [("system", LONG), ("user", question), ("assistant", "yes")]
        return [Example(messages=[{"role": role, "content": text} for role, text in turns])]

    assert overlap(chat("first"), chat("second")).shared_words == 0
    assert overlap(chat("first"), chat("first")).equal == 1


def test_all_rows_that_training_rows_contain_are_named_by_their_numbers():
    asked = [(row, *rows((f"question {row}", "x"))) for row in range(3, 40)]
    found, leaked = overlapping(asked, rows(*((f"Question {row}", "y") for row in range(10, 30))))
    assert leaked == list(range(10, 30)) and found.examples == [11, 12, 13, 14, 15]


def test_the_numbers_are_those_of_the_file_and_answers_that_are_unwanted_are_not_evaluated(
    tmp_path, monkeypatch, capsys
):
    evaluated, trained = tmp_path / "evaluated.jsonl", tmp_path / "trained.jsonl"
    lines = [
        {"prompt": "a", "completion": ""}, {"prompt": "b", "completion": "x", "label": False},
        {"prompt": "c", "completion": "x", "label": True}, {"prompt": "d", "completion": "x", "label": True},
    ]  # fmt: skip
    for path, part in ((evaluated, lines), (trained, lines[1:3])):
        path.write_text("".join(json.dumps(line) + "\n" for line in part))
    asked = {"evaluation": [str(evaluated), None, "one"], "training": [[str(trained), None, "two"]], "rows": None}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asked)))
    main()
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["training_rows"], found["equal"]) == (2, 2, 1)
    assert (found["leaked"], found["examples"]) == ([2], [3])
