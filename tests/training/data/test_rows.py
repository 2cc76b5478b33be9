"""Reading files, detecting their format, and reporting problems with position and fix."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

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
        ("cut.parquet", b"PAR1\x15\x04", "damaged or truncated Parquet"),
        ("nul.jsonl", b'{"text": "a\0b"}', "NUL"),
        ("object.json", b'{"data": [{"text": "a"}]}\n{', "a list of rows under 'data'"),
        ("wrapped.json", b'{\n"data": [{"text": "a"}]}', "not a list of rows"),
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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
