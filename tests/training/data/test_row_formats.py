"""Each format is detected with its reason, and each row becomes an example."""

import json
import string

import pytest
from subtest_table import table

from training.data.example import EmptyRow, Example
from training.data.inspection import inspect
from training.data.row_format import RowFormat
from training.data.row_formats import UnknownFormat, find_format
from training.data.rows import read_numbered
from training.data.to_examples import to_example
from training.errors import DataError


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def system(text):
    return {"role": "system", "content": text}


TOOL = {"type": "function", "function": {"name": "add", "parameters": {}}}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
HH = "\n\nHuman: Hi\n\nAssistant: Hello.\n\nHuman: Why?\n\nAssistant: "


def message(role, text, *replies, **more):
    return {"role": role, "text": text, "replies": list(replies), **more}


TREE = message(
    "prompter",
    "a",
    message("assistant", "second", rank=1),
    message("assistant", "best", message("prompter", "c", message("assistant", "d", message("prompter", "e"))), rank=0),
)

EXAMPLES = [  # a row, its format, and its example
    ({"instruction": "Add.", "output": "3"}, "alpaca", Example([user("Add."), assistant("3")])),
    ({"instruction": "Add.", "input": "1 2", "output": "3"}, "alpaca", Example([user("Add.\n\n1 2"), assistant("3")])),
    ({"instruction": "", "input": "1 + 2", "output": "3"}, "alpaca", Example([user("1 + 2"), assistant("3")])),
    (
        {"instruction": "c", "output": "d", "system": "s", "history": [["a", "b"]]},
        "alpaca",
        Example([system("s"), user("a"), assistant("b"), user("c"), assistant("d")]),
    ),
    (
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "system": "s"},
        "sharegpt",
        Example([system("s"), user("a"), assistant("b")]),
    ),
    (
        {
            "conversations": [
                {"from": "human", "value": "a"},
                {"from": "function_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
                {"from": "observation", "value": "2"},
                {"from": "gpt", "value": "b"},
            ],
            "tools": json.dumps([TOOL]),
        },
        "sharegpt",
        Example(
            [user("a"), assistant("", tool_calls=[CALL]), {"role": "tool", "content": "2"}, assistant("b")],
            tools=[TOOL],
        ),
    ),
    ({"messages": [user("a"), assistant("b")]}, "messages", Example([user("a"), assistant("b")])),
    ({"messages": json.dumps([user("a"), assistant("b")])}, "messages", Example([user("a"), assistant("b")])),
    (
        {"messages": [{"role": "developer", "content": "s"}, user("a"), assistant("b"), user("c"), assistant("d")]},
        "messages",
        Example([system("s"), user("a"), assistant("b"), user("c"), assistant("d")]),
    ),
    (
        {
            "messages": [
                user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]),
                {
                    "role": "assistant",
                    "content": None,
                    "name": None,
                    "tool_calls": [{"id": "1", "function": {"name": "add", "arguments": '{"a": 1}'}}],
                },
                {"role": "tool", "content": "2", "tool_call_id": "1"},
            ],
            "tools": [TOOL],
        },
        "messages",
        Example(
            [
                user("ab"),
                assistant("", tool_calls=[{"id": "1", "function": {"name": "add", "arguments": {"a": 1}}}]),
                {"role": "tool", "content": "2", "tool_call_id": "1"},
            ],
            tools=[TOOL],
        ),
    ),
    ({"prompt": "a", "completion": "b"}, "prompt/completion", Example(prompt="a", answer="b")),
    (
        {"prompt": "a", "completion": "b", "system": "s"},
        "prompt/completion",
        Example([system("s"), user("a"), assistant("b")]),
    ),
    (
        {"prompt": [user("a")], "completion": [assistant("b")]},
        "prompt/completion",
        Example([user("a"), assistant("b")]),
    ),
    ({"prompt": "a"}, "prompt", Example(prompt="a", answered=False)),
    ({"prompt": "a", "ground_truth": "b", "level": 3}, "prompt", Example(prompt="a", answered=False)),
    ({"prompt": "a", "system": "s"}, "prompt", Example([system("s"), user("a")], answered=False)),
    (
        {"prompt": [user("a"), assistant("b"), user("c")], "reward_model": {"ground_truth": "d"}, "tools": [TOOL]},
        "prompt",
        Example([user("a"), assistant("b"), user("c")], tools=[TOOL], answered=False),
    ),
    (
        {"prompt": "a", "chosen": "b", "rejected": "c"},
        "preference",
        Example(prompt="a", answer="b", rejected="c"),
    ),
    (
        {"prompt": [user("a")], "chosen": [assistant("b")], "rejected": [assistant("c")]},
        "preference",
        Example([user("a"), assistant("b")], rejected=[assistant("c")]),
    ),
    (
        {"chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("c")]},
        "preference",
        Example([user("a"), assistant("b")], rejected=[assistant("c")]),
    ),
    (
        {"prompt": "a", "chosen": [user("a"), assistant("b")], "rejected": [user("a"), assistant("b")]},
        "preference",
        Example([user("a"), assistant("b")], rejected=[assistant("b")]),
    ),
    (
        {
            "conversations": [{"from": "human", "value": "a"}],
            "chosen": {"from": "gpt", "value": "b"},
            "rejected": {"from": "gpt", "value": "c"},
        },
        "preference",
        Example([user("a"), assistant("b")], rejected=[assistant("c")]),
    ),
    (
        {"chosen": HH + "Because.", "rejected": HH + "No."},
        "preference",
        Example([user("Hi"), assistant("Hello."), user("Why?"), assistant("Because.")], rejected=[assistant("No.")]),
    ),
    (
        {"chosen": "Q: why? A: because.", "rejected": "Q: why? A: before."},
        "preference",
        Example(prompt="Q: why? A: ", answer="because.", rejected="before."),
    ),
    (
        {"instruction": "Add.", "input": "1 2", "chosen": "3", "rejected": "4"},
        "preference",
        Example([user("Add.\n\n1 2"), assistant("3")], rejected=[assistant("4")]),
    ),
    (
        {"instruction": "Add.", "input": "1 2", "output": ["3", "4"], "system": "s", "history": [["a", "b"]]},
        "preference",
        Example(
            [system("s"), user("a"), assistant("b"), user("Add.\n\n1 2"), assistant("3")], rejected=[assistant("4")]
        ),
    ),
    (
        {"conversations": [{"from": "User", "value": "a"}, {"from": "GPT", "value": "b"}]},
        "sharegpt",
        Example([user("a"), assistant("b")]),
    ),
    ({"conversation": [{"human": "a", "assistant": "b"}]}, "sharegpt", Example([user("a"), assistant("b")])),
    ({"question": "a", "sql": "b"}, "alpaca", Example([user("a"), assistant("b")])),
    ({"question": "a", "context": "c", "sql": "b"}, "alpaca", Example([user("a\n\nc"), assistant("b")])),
    (
        {"question": "a", "response_j": "b", "response_k": "c"},
        "preference",
        Example([user("a"), assistant("b")], rejected=[assistant("c")]),
    ),
    ({"question": "a", "answer": "b"}, "alpaca", Example([user("a"), assistant("b")])),
    ({"Input": "a", "Output": "b", "id": 1}, "alpaca", Example([user("a"), assistant("b")])),
    (
        {"system": "s", "question": "a", "context": "c", "answer": "b"},
        "alpaca",
        Example([system("s"), user("a\n\nc"), assistant("b")]),
    ),
    ({"instruction": "a", "input": "c", "response": "b"}, "alpaca", Example([user("a\n\nc"), assistant("b")])),
    (
        {"query": "a", "response": "b", "history": [["c", "d"]]},
        "alpaca",
        Example([user("c"), assistant("d"), user("a"), assistant("b")]),
    ),
    ({"prompt": "a", "response": "b"}, "prompt/completion", Example(prompt="a", answer="b")),
    (
        {"system": "s", "question": "a", "chosen": "b", "rejected": "c"},
        "preference",
        Example([system("s"), user("a"), assistant("b")], rejected=[assistant("c")]),
    ),
    ({"translation": {"en": "a", "de": "b"}}, "source/target", Example(prompt="a", answer="b")),
    (TREE, "message tree", Example([user("a"), assistant("best"), user("c"), assistant("d")])),
    (
        {"message_tree_id": "1", "prompt": TREE},
        "message tree",
        Example([user("a"), assistant("best"), user("c"), assistant("d")]),
    ),
    (
        {"prompt": "a", "completion": "b", "label": False},
        "unpaired preference",
        Example(prompt="a", answer="b", label=False),
    ),
    (
        {"messages": [user("a"), assistant("b")], "label": True},
        "unpaired preference",
        Example([user("a"), assistant("b")], label=True),
    ),
    ({"prompt": "a", "completion": "b", "label": 7}, "prompt/completion", Example(prompt="a", answer="b")),
    ({"text": "so good", "label": "praise"}, "text/label", Example(prompt="so good", answer="praise")),
    ({"text": "so good", "label": 1}, "text/label", Example(prompt="so good", answer="1")),
    ({"text": "once upon a time"}, "text", Example(answer="once upon a time")),
    ({"source": "Haus", "target": "house"}, "source/target", Example(prompt="Haus", answer="house")),
]


@table(("row", "shape", "example"), EXAMPLES)
def test_a_row_is_detected_and_becomes_an_example(row, shape, example):
    detected = find_format(row)
    assert detected.format == shape and detected.reason.startswith("every row has the column")
    assert to_example(row, detected.format) == example


def test_there_is_an_example_of_every_format():
    assert {shape for _, shape, _ in EXAMPLES} == set(RowFormat)


@table(
    "row",
    [
        {"question": "a", "answer": 5},
        {"question": "a", "answer": "b", "solution": "c"},
        {"prompt": "a", "question": "a", "answer": "b"},
        {"question": "a", "choices": ["b", "c"], "answer": "b"},
        {"question": "a", "A": "b", "B": "c", "answer": "A"},
        {"question": "a", "option_a": "b", "answer": "b"},
        {"query": "a", "response": "b", "history": "c"},
        {"question": "a", "reasoning": "c", "answer": "b"},
        {"question": "a", "answer_1": "c", "answer": "b"},
        {"question": "a", "Question": "c", "answer": "b"},
        {"prompt": "a", "context": "c", "response": "b"},
        {"prompt": "a", "completion": {"text": "b"}},
        {"text": {"de": "a", "en": "b"}},
        {"messages": [["user", "a"]]},
        {"instruction": "a", "output": ["b"]},
        {},
    ],
)
def test_columns_that_need_a_mapping_have_no_known_format(row):
    with pytest.raises(UnknownFormat, match="no known format"):
        find_format(row)


@table(
    ("row", "mapping"),
    [
        ({"text": "a", "code": "b"}, "prompt=text, completion=code"),
        ({"text": "a", "question": "b", "answer": "c"}, "prompt=question, completion=answer"),
        ({"text": "a", "instruction": "b", "context": "d", "response": "c"}, "instruction=instruction, input=context"),
        ({"text": "a", "summary": "b"}, "source=text, target=summary"),
    ],
)
def test_text_beside_a_pair_is_not_read_without_a_mapping(row, mapping):
    with pytest.raises(UnknownFormat, match="beside columns that form a pair") as caught:
        find_format(row)
    assert mapping in caught.value.fix and "text=text" in caught.value.fix


def test_text_beside_other_columns_is_text_and_they_are_named(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "a", "title": "b", "id": 1}) + "\n")
    assert (inspect(path).format, inspect(path).unused) == ("text", ["title", "id"])


@table(
    "row",
    [
        {"message_id": "1", "parent_id": "0", "text": "a", "role": "assistant"},
        user("a"),
        {"from": "human", "value": "a"},
    ],
)
def test_one_message_of_a_conversation_is_no_row(row):
    with pytest.raises(UnknownFormat, match="one message of a conversation"):
        find_format(row)


@table(
    ("row", "columns", "unused"),
    [
        ({"instruction": "a", "output": "b", "topic": "c"}, None, ["topic"]),
        ({"messages": [user("a"), assistant("b")], "conversations": [], "id": 1}, None, ["conversations", "id"]),
        ({"q": {"text": "a", "lang": "en"}, "a": "b", "c": "d"}, "prompt=q.text, completion=a", ["c"]),
        ({"prompt": "a", "chosen": "b", "rejected": "c", "text": "x"}, None, ["text"]),
        ({"question": "a", "sql": "b", "db": "x"}, None, ["db"]),
        ({"question": "a", "output": "b", "topic": "x"}, None, ["topic"]),
        ({"Human": "a", "Assistant": "b", "level": "x", "system_prompt": "s"}, None, ["level"]),
        ({"question": "a", "chosen": "b", "rejected": "c", "score": "x"}, None, ["score"]),
        ({"id": 1, "translation": {"en": "a", "de": "b"}}, None, ["id"]),
    ],
)
def test_columns_that_nothing_uses_are_named(tmp_path, row, columns, unused):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row) + "\n")
    assert inspect(path, columns=columns).unused == unused


def test_texts_that_are_read_and_then_vanish_are_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    turns = [system("own"), user("a"), assistant("b")]
    rows = [{"messages": turns, "system": given} for given in ("own", "another", "more")]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    [issue] = inspect(path).problems
    assert (issue.level, issue.field, issue.line, issue.rows) == ("warning", "system", 2, 2)


def test_other_replies_of_a_tree_are_counted(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(TREE) + "\n")
    [issue] = inspect(path).problems
    assert issue.field == "replies" and "1 further replies" in issue.message


@table(
    ("row", "field"),
    [
        ({"instruction": " ", "input": "", "output": "a"}, "instruction"),
        ({"prompt": "a", "completion": ""}, "completion"),
        ({"prompt": None, "completion": "a"}, "prompt"),
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [user("a"), assistant(" ")]}, "messages"),
        ({"prompt": "a", "chosen": "", "rejected": "b"}, "chosen"),
        ({"chosen": [user("a"), assistant("")], "rejected": [user("a"), assistant("b")]}, "chosen"),
        ({"text": "\n"}, "text"),
        ({"source": "", "target": "a"}, "source"),
        ({"question": "a", "answer": None}, "answer"),
        ({"Input": " ", "Output": "a"}, "Input"),
        ({"question": "a", "chosen": "", "rejected": "b"}, "chosen"),
    ],
)
def test_rows_without_loss_tokens_are_distinguished_from_invalid_rows(row, field):
    with pytest.raises(EmptyRow) as caught:
        to_example(row, find_format(row).format)
    assert caught.value.field == field


@table(
    ("row", "words"),
    [
        ({"chosen": "Yes", "rejected": "No"}, "there is no prompt"),
        ({"chosen": [assistant("a")], "rejected": [assistant("b")]}, "do not start with the same turns"),
        ({"messages": [user("a"), assistant("b")], "tools": "none"}, "not a list of tools"),
        ({"messages": [user("a"), assistant("b", tool_calls="add")]}, "not a list of calls"),
        ({"instruction": "a", "output": "b", "history": [["a"]]}, "not a question and an answer"),
        ({"conversations": [{"from": "function_call", "value": "add"}]}, "is not a function call"),
    ],
)
def test_an_invalid_row_is_reported_with_its_problem(row, words):
    with pytest.raises(DataError) as caught:
        to_example(row, find_format(row).format)
    assert not isinstance(caught.value, EmptyRow)
    assert words in caught.value.message and caught.value.fix and caught.value.field


def test_skipped_rows_do_not_change_row_numbers(tmp_path):
    path = tmp_path / "rows.jsonl"
    rows = [
        {"prompt": "a", "completion": answer, "label": label}
        for answer, label in (("b", True), ("", True), ("c", False))
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))
    numbered = list(read_numbered(path))
    assert [(number, example is not None) for number, _, example in numbered] == [
        (0, True),
        (1, False),
        (2, False),
        (3, True),
    ]
    assert numbered[1][1] == rows[1]
    inspection = inspect(path)
    assert (inspection.rows, inspection.empty_rows, inspection.trainable) == (4, 1, True)
    assert [(issue.field, issue.line, issue.rows) for issue in inspection.problems] == [
        ("completion", 2, 1),
        ("label", 3, 1),
    ]


def test_every_kind_of_problem_is_reported_once_with_its_first_row_and_count(tmp_path):
    path = tmp_path / "rows.jsonl"
    good = json.dumps({"prompt": "a", "completion": "b"})
    bad = ['{"prompt": "a"}', "{", json.dumps({"prompt": 1, "completion": "b"}), "[1]"]
    path.write_text("\n".join([good, *bad, good, *bad, good]))
    inspection = inspect(path)
    assert [(issue.line, issue.rows) for issue in inspection.problems if issue.level == "error"] == [
        (2, 2),
        (3, 2),
        (4, 2),
        (5, 2),
    ]
    assert (inspection.rows, inspection.trainable) == (11, False)


def test_at_most_twenty_kinds_of_problems_are_reported(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(f'{{"text": "a", "{letter}": 1, "{letter}": 2}}\n' for letter in string.ascii_letters))
    inspection = inspect(path)
    assert len(inspection.problems) == 20 and not inspection.trainable


def test_the_problem_of_mixed_formats_counts_their_rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a"}\n' * 3 + '{"source": "a", "target": "b"}\n')
    inspection = inspect(path)
    assert inspection.reason == "3 of 4 rows have the column text"
    assert inspection.counts == {"text": 3, "source/target": 1}
    assert inspection.trainable


@table(
    ("text", "texts", "reason"),
    [
        ("One.\nTwo.\n", ["One.", "Two."], "every line is one row"),
        ("One\nand more.\n\n\nTwo.\n", ["One\nand more.", "Two."], "every paragraph is one row"),
        ("\n\nOne.\nTwo.\n\n", ["One.", "Two."], "every line is one row"),
    ],
)
def test_a_text_file_is_split_at_blank_lines_or_else_at_lines(tmp_path, text, texts, reason):
    path = tmp_path / "rows.txt"
    path.write_text(text)
    assert [example and example.answer for _, _, example in read_numbered(path)] == texts
    assert inspect(path).reason.startswith(reason)
