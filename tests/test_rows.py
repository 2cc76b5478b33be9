"""Files are read, their shape is found, and what is wrong with one is named with place and fix."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from training.failure import DataError
from training.inspection import inspect
from training.rows import read_examples

ALPACA = {"instruction": "Add.", "input": "1 2", "output": "3"}
CHAT = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


def jsonl(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def complaint(path: Path) -> DataError:
    error = inspect(path).error()
    assert error and error.file == path.name and error.message and error.fix
    return error


@pytest.mark.parametrize(
    ("row", "shape"),
    [
        (ALPACA, "alpaca"),
        (CHAT, "messages"),
        ({"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]}, "sharegpt"),
        ({"prompt": "a", "completion": "b"}, "prompt/completion"),
        ({"text": "once upon a time"}, "text"),
    ],
)
def test_each_shape_is_found_by_its_columns(tmp_path: Path, row: dict[str, Any], shape: str) -> None:
    found = inspect(jsonl(tmp_path / "rows.jsonl", row, row))
    assert (found.file_format, found.format, found.rows, found.columns) == ("jsonl", shape, 2, list(row))
    assert (found.counts, found.trainable, found.problems) == ({shape: 2}, True, [])


def test_the_same_rows_read_the_same_from_every_format(tmp_path: Path) -> None:
    rows = [ALPACA, ALPACA | {"output": 'four, "five"\nsix'}]
    (tmp_path / "a.json").write_text(json.dumps(rows))
    jsonl(tmp_path / "a.jsonl", *rows)
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    (tmp_path / "a.csv").write_text('\ufeffinstruction,input,output\nAdd.,1 2,3\nAdd.,1 2,"four, ""five""\nsix"\n')
    read = {file.suffix: list(read_examples(file)) for file in tmp_path.iterdir()}
    assert len(read) == 4
    assert all(examples == read[".json"] for examples in read.values())
    assert read[".json"][1].messages == [
        {"role": "user", "content": "Add.\n\n1 2"},
        {"role": "assistant", "content": 'four, "five"\nsix'},
    ]


@pytest.mark.parametrize(
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
        ("cut.parquet", b"PAR1\x15\x04", "damaged or cut Parquet"),
        ("nul.jsonl", b'{"text": "a\0b"}', "NUL"),
        ("object.json", b'{"data": [{"text": "a"}]}\n{', "a list of rows under 'data'"),
        ("wrapped.json", b'{\n"data": [{"text": "a"}]}', "not a list of rows"),
        ("open.json", b'[{"text": "a"}', "not valid JSON"),
        ("words.jsonl", b"hello\n", "does not begin with"),
        ("ragged.csv", b"text,more\na,b\nc\n", "1 values for 2 columns"),
        ("quote.csv", b'text\n"never closed\n', "not valid CSV"),
        ("twice.csv", b"text,text\na,b\n", "twice"),
        ("number.jsonl", b'{"text": 3}\n', "a number"),
        ("strange.jsonl", b'{"frage": "a", "antwort": "b"}\n', "'frage' and 'antwort'"),
        ("picture.png", b"\x89PNG", "a picture"),
        ("notes.doc", b"hello", "ending .doc"),
    ],
)
def test_a_file_that_cannot_train_says_why(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    assert words in str(complaint(path))


@pytest.mark.parametrize(
    ("row", "field", "words"),
    [
        ('{"messages": [{"role": "user", "content"', "", "the line is cut off"),
        ('{"text": "a", "text": "b"}', "text", "twice"),
        ({"prompt": "only"}, "messages", "missing"),
        ({"messages": "Hi"}, "messages", "list of messages"),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "messages[0].role", "'robot'"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "null"),
        ([1, 2], "", "a list, not an object"),
        ("[" * 20_000, "", "nested too deeply"),
    ],
)
def test_a_bad_row_is_named_by_its_number_and_field(tmp_path: Path, row: Any, field: str, words: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(CHAT) + "\n" + (row if isinstance(row, str) else json.dumps(row)))
    error = complaint(path)
    assert words in str(error)
    assert error.field == field
    assert error.line == 2


def test_long_values_are_cut_short_in_the_sample(tmp_path: Path) -> None:
    found = inspect(jsonl(tmp_path / "rows.jsonl", {"text": "x" * 10_000}))
    assert len(found.sample[0]["text"]) < 500


@pytest.mark.parametrize(
    ("name", "shape", "rows"),
    [
        ("alpaca_en_demo.json", "alpaca", 999),
        ("chatalpaca-1k.jsonl", "messages", 989),
        ("multiply-1k.jsonl", "messages", 1000),
        ("dpo_en_demo.json", "preference", 300),
    ],
)
def test_real_data_sets_are_read_whole(name: str, shape: str, rows: int, real_data: Path) -> None:
    found = inspect(real_data / name)
    assert (found.format, found.rows, found.trainable, found.problems) == (shape, rows, True, [])
