"""Reading files, detecting their format, and reporting problems with position and fix."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet
from subtest_table import table

from training.data.inspection import inspect
from training.data.rows import read_numbered
from training.errors import DataError

ALPACA = {"instruction": "Add.", "input": "1 2", "output": "3"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def complaint(path: Path) -> DataError:
    error = inspect(path).error()
    assert error and error.file == path.name and error.message and error.fix
    return error


@table(
    ("row", "shape"),
    [
        (ALPACA, "alpaca"),
        (CHAT, "messages"),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "sharegpt"),
        ({"prompt": "a", "completion": "b"}, "prompt/completion"),
        ({"text": "once upon a time"}, "text"),
    ],
)
def test_each_format_is_detected_by_its_columns(tmp_path: Path, row: dict[str, Any], shape: str) -> None:
    inspection = inspect(jsonl(tmp_path / "rows.jsonl", row, row))
    assert (inspection.file_format, inspection.format, inspection.rows, inspection.columns) == (
        "jsonl",
        shape,
        2,
        list(row),
    )
    assert (inspection.counts, inspection.trainable, inspection.problems) == ({shape: 2}, True, [])


def test_rows_are_the_same_from_every_file_type(tmp_path: Path) -> None:
    rows = [ALPACA, ALPACA | {"output": 'four, "five"\nsix'}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    jsonl(tmp_path / "a.jsonl", *rows)
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text('\ufeffinstruction,input,output\nAdd.,1 2,3\nAdd.,1 2,"four, ""five""\nsix"\n')
    read = {file.suffix: [example for _, _, example in read_numbered(file)] for file in tmp_path.iterdir()}
    assert len(read) == 4
    assert all(examples == read[".json"] for examples in read.values())
    assert read[".json"][1].messages == [
        {"role": "user", "content": "Add.\n\n1 2"},
        {"role": "assistant", "content": 'four, "five"\nsix'},
    ]


@table(
    ("name", "content", "words"),
    [
        ("empty.jsonl", b"", "is empty"),
        ("blank.csv", b" \n\n", "is empty"),
        ("header.csv", b"text\n", "no rows"),
        ("latin.csv", "text\ncaf\xe9\n".encode("latin-1"), "not UTF-8"),
        ("wide.jsonl", '{"text":"a"}'.encode("utf-16"), "UTF-16"),
        ("program.jsonl", b"\x7fELF\x02\x01", "a program"),
        ("packed.jsonl", b"\x1f\x8b\x08\0", "gzip"),
        ("archive.json", b"PK\x03\x04", "zip archive"),
        ("fake.parquet", b"hello", "is not Parquet"),
        ("cut.parquet", b"PAR1\x15\x04", "damaged or truncated Parquet"),
        ("nul.jsonl", b'{"text": "a\0b"}', "NUL"),
        ("object.json", b'{"data": [{"text": "a"}]}\n{', "a list of rows under 'data'"),
        ("one.json", b'{\n"messages": [{"role": "user", "content": "a"}]}', "is one row, not a list of rows"),
        ("none.json", b'{\n"text": "a"}', "not a list of rows"),
        ("of_texts.json", b'{\n"labels": ["a", "b"], "note": 1}', "not a list of rows"),
        ("two.json", b'{\n"train": [{"text": "a"}], "test": [{"text": "b"}]}', "several lists: train and test"),
        ("cut_inside.json", b'{\n"data": [{"text": "a"}', "not valid JSON"),
        ("pointer.jsonl", b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n", "a Git LFS pointer"),
        ("open.json", b'[{"text": "a"}', "not valid JSON"),
        ("words.jsonl", b"hello\n", "does not start with"),
        ("ragged.csv", b"text,more\na,b\nc\n", "1 values for 2 columns"),
        ("quote.csv", b'text\n"never closed\n', "not valid CSV"),
        ("twice.csv", b"text,text\na,b\n", "twice"),
        ("number.jsonl", b'{"text": 3}\n', "a number"),
        ("strange.jsonl", b'{"frage": "a", "antwort": "b"}\n', "'frage' and 'antwort'"),
        ("picture.png", b"\x89PNG", "a picture"),
        ("notes.doc", b"hello", "ending .doc"),
    ],
)
def test_a_file_that_cannot_train_is_refused_with_the_reason(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert words in str(complaint(path))


@table(
    ("row", "field", "words"),
    [
        ('{"messages": [{"role": "user", "content"', "", "the line is truncated"),
        ('{"text": "a", "text": "b"}', "text", "twice"),
        ({"prompt": "only"}, "messages", "missing"),
        ({"messages": "Hi"}, "messages", "list of messages"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role", "'robot'"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "null"),
        ([1, 2], "", "a list, not an object"),
        ("[" * 20_000, "", "nested too deeply"),
    ],
)
def test_an_invalid_row_is_reported_with_number_and_field(tmp_path: Path, row: Any, field: str, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(CHAT) + "\n" + (row if isinstance(row, str) else json.dumps(row)))
    error = complaint(path)
    assert words in str(error)
    assert error.field == field
    assert error.line == 2


def test_long_values_are_truncated_in_the_sample(tmp_path: Path) -> None:
    inspection = inspect(jsonl(tmp_path / "rows.jsonl", {"text": "x" * 10_000}))
    assert len(inspection.sample[0]["text"]) < 500


@table(
    ("name", "shape", "rows"),
    [
        ("alpaca_en_demo.json", "alpaca", 999),
        ("chatalpaca-1k.jsonl", "messages", 989),
        ("multiply-1k.jsonl", "messages", 1000),
        ("dpo_en_demo.json", "preference", 300),
    ],
)
def test_real_data_sets_are_read_completely(name: str, shape: str, rows: int, real_data: Path) -> None:
    inspection = inspect(real_data / name)
    assert (inspection.format, inspection.rows, inspection.trainable, inspection.problems) == (shape, rows, True, [])


def test_the_list_inside_an_object_is_read(tmp_path: Path) -> None:
    path = tmp_path / "wrapped.json"
    path.write_text(
        json.dumps(
            {"version": 1, "labels": ["a", "b"], "empty": [], "data": [ALPACA, ALPACA], "license": "none"}, indent=1
        )
    )
    assert (inspect(path).format, inspect(path).rows) == ("alpaca", 2)


def test_each_question_of_squad_is_a_row_and_gets_a_mapping(tmp_path: Path) -> None:
    asked = [
        {"question": f"What is {n}?", "id": str(n), "answers": [{"text": str(n), "answer_start": 0}]} for n in range(3)
    ]
    paragraphs = [{"context": "Numbers.", "qas": asked}]
    path = tmp_path / "squad.json"
    path.write_text(json.dumps({"version": "1.1", "data": [{"title": "a", "paragraphs": paragraphs}] * 2}))
    found = inspect(path)
    assert (found.rows, found.mappable) == (6, True)
    assert found.suggestion == "instruction=question, input=context, output=answers.0.text"
    assert inspect(path, columns=found.suggestion).trainable


@table(
    ("row", "mapping"),
    [
        ({"question": "a", "answer": "b", "solution": "c"}, "prompt=question, completion=answer"),
        ({"Prompt": "a", "Response": "b", "history": "c"}, "prompt=Prompt, completion=Response"),
        ({"article": "a", "highlights": "b"}, "source=article, target=highlights"),
        ({"review": "a", "sentiment": "good"}, "text=review, label=sentiment"),
        ({"content": "a", "url": "b"}, "text=content"),
        ({"question": "a", "answers": {"text": ["b"]}}, "prompt=question, completion=answers.text.0"),
        (
            {"query": "a", "chosen_response": "b", "rejected_response": "c"},
            "prompt=query, chosen=chosen_response, rejected=rejected_response",
        ),
        (
            {"prompt": "a", "response": "b", "history": [["c", "d"]]},
            "instruction=prompt, output=response, history=history",
        ),
        (
            {"instruction": "a", "instances": [{"input": "b", "output": "c"}]},
            "instruction=instruction, input=instances.0.input, output=instances.0.output",
        ),
        ({"en": "a", "de": "b", "id": 1}, "source=en, target=de"),
        ({"frage": "a", "antwort": "b"}, ""),
        (
            {
                "Nr.": "1",
                "Kundenfrage ": "Wie bestelle ich Äpfel?",
                "Antwort (Agent)": "Bitte zweimal klicken.",
                "": "",
                "datum": "2026-01-01",
            },
            'prompt="Kundenfrage ", completion=Antwort (Agent)',
        ),
        ({"id": "a1", "inhalt": "Ein langer Text aus Wörtern."}, "text=inhalt"),
        ({"frage": "Welche Farbe hat es?", "choices": ["rot", "blau"], "antwort": "Es ist wohl rot."}, ""),
        ({"question": "a", "answer": 5}, ""),
    ],
)  # fmt: skip
def test_a_mapping_is_suggested_only_if_it_fits_the_rows(tmp_path: Path, row: dict[str, Any], mapping: str) -> None:
    found = inspect(jsonl(tmp_path / "rows.jsonl", row))
    assert found.suggestion == mapping
    assert not mapping or inspect(tmp_path / "rows.jsonl", columns=mapping).trainable


PAIR = {"prompt": "What is this?", "completion": "A cat."}


@table(
    "row",
    [
        PAIR | {"image": "cat.png"},
        PAIR | {"images": [{"bytes": "aGk=", "path": None}]},
        CHAT | {"videos": ["cat.mp4"]},
        {"question": "a", "answer": "b", "audio": {"path": "cat.wav"}},
        PAIR | {"prompt": "<image>\nWhat is this?"},
        PAIR | {"prompt": "What is this? <image>"},
        PAIR | {"prompt": "Look:\n<video>\nWhat is this?"},
        PAIR | {"prompt": "<|vision_start|><|image_pad|><|vision_end|>What?"},
        {"messages": [{"role": "user", "content": "<audio>\nWhat?"}, {"role": "assistant", "content": "A cat."}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "a"}}]}]},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "value": "a.png"}]}]},
    ],
)
def test_rows_with_images_audio_or_video_are_refused(tmp_path: Path, row: dict[str, Any]) -> None:
    error = complaint(jsonl(tmp_path / "rows.jsonl", row))
    assert error.line == 1
    assert "image" in str(error) or "video" in str(error) or "audio" in str(error)


@table(
    "row",
    [
        PAIR | {"image": None, "images": [], "audio": ""},
        PAIR | {"prompt": "How do I centre a <video> element in HTML?"},
        PAIR | {"completion": "<video>\n</video>"},
        {"text": "The tag <image> is not part of HTML."},
        {"text": "<image>"},
    ],
)
def test_text_about_images_and_empty_columns_train(tmp_path: Path, row: dict[str, Any]) -> None:
    assert inspect(jsonl(tmp_path / "rows.jsonl", row)).trainable


def test_tool_calls_without_a_content_key_are_read(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    tool = {"name": "add", "parameters": {"type": "object"}}
    asked = {"role": "user", "content": "Add."}
    rows = [
        {"messages": [asked, {"role": "assistant", "tool_calls": [call]}], "tools": [{"type": "function", "function": tool}]},
        {"messages": [asked, {"role": "assistant", "function_call": call["function"]}], "functions": [tool]},
    ]  # fmt: skip
    for _, _, example in read_numbered(jsonl(tmp_path / "rows.jsonl", *rows)):
        assert example is not None and example.messages is not None
        answer = example.messages[-1]
        assert (answer["content"], answer["tool_calls"][0]["function"]) == ("", {"name": "add", "arguments": {"a": 1}})
        assert example.tools == [{"type": "function", "function": tool}]


def test_typed_parts_are_text_reasoning_and_tool_calls(tmp_path: Path) -> None:
    parts = [
        {"type": "reasoning", "value": "One and one."},
        {"type": "text", "value": "I add. "},
        {"type": "text", "text": "Wait."},
        {"type": "tool_call", "value": '{"name": "add", "arguments": {"a": 1}}'},
    ]
    row = {
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Add."}]},
            {"role": "assistant", "content": parts},
        ]
    }
    ((_, _, example),) = read_numbered(jsonl(tmp_path / "rows.jsonl", row))
    assert example is not None and example.messages is not None
    asked, answer = example.messages
    assert (asked["content"], answer["content"], answer["reasoning_content"]) == (
        "Add.",
        "I add. Wait.",
        "One and one.",
    )
    assert answer["tool_calls"][0]["function"] == {"name": "add", "arguments": {"a": 1}}


def test_a_suggestion_keeps_the_columns_that_some_rows_lack(tmp_path: Path) -> None:
    more = {"prompt": "a", "response": "b", "system": "s", "history": [["c", "d"]]}
    found = inspect(jsonl(tmp_path / "rows.jsonl", more, {"prompt": "a", "response": "b"}))
    assert found.suggestion == "instruction=prompt, output=response, system=system, history=history"
