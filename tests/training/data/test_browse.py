"""Rows of a file from any number on, and those that contain a text."""

import gzip
import json

import pyarrow
import pytest
from pyarrow import parquet
from subtest_table import table

from training.data.files.browse import _ENTRY, EVERY, MATCHES, document, entries, page, rows_from, search
from training.data.files.table_reader import _row
from training.errors import DataError

ROWS = [{"prompt": f"question {n}", "completion": f"Ünïcode\n{n * 7}"} for n in range(1, 401)]


def written(folder, file_format):
    path = folder / f"data.{file_format}"
    lines = "".join(json.dumps(row, ensure_ascii=n % 2 == 0) + "\n" for n, row in enumerate(ROWS))
    if file_format == "parquet":
        parquet.write_table(pyarrow.Table.from_pylist(ROWS), path, row_group_size=90)
    elif file_format == "jsonl.gz":
        path.write_bytes(gzip.compress(lines.encode()))
    elif file_format == "csv":
        path.write_text("prompt,completion\n" + "".join(f'{row["prompt"]},"{row["completion"]}"\n' for row in ROWS))
    else:
        path.write_text(json.dumps(ROWS) if file_format == "json" else lines)
    return path


@table("file_format", ["jsonl", "jsonl.gz", "json", "csv", "parquet"])
@table("first", [1, 90, 91, 256, 400, 401])
def test_rows_are_read_from_any_number_on(tmp_path, file_format, first):
    listed = list(rows_from(written(tmp_path, file_format), file_format, first))
    assert listed == list(enumerate(ROWS[first - 1 :], first))


@table("first", [1, EVERY, EVERY + 1, 3 * EVERY, 400])
def test_an_index_leads_to_the_same_rows_in_a_file_with_blank_lines_and_a_byte_order_mark(tmp_path, first):
    path, index = tmp_path / "data.jsonl", tmp_path / "index"
    lines = [json.dumps(row, ensure_ascii=False) + ("\r\n" if n % 3 else "\n\n \u00a0\n") for n, row in enumerate(ROWS)]
    path.write_bytes(b"\xef\xbb\xbf" + "".join(lines).encode())
    index.write_bytes(b"".join(entries(path, "jsonl")))
    assert list(rows_from(path, "jsonl", first, index=index)) == list(enumerate(ROWS[first - 1 :], first))


def test_a_row_that_cannot_be_read_names_its_row_and_line_with_and_without_an_index(tmp_path):
    path, index = tmp_path / "data.jsonl", tmp_path / "index"
    path.write_text("\n" + '{"text": "a"}\n' * 99 + "{broken\n" + '{"text": "b"}\n')
    index.write_bytes(b"".join(entries(path, "jsonl")))
    listed = [list(rows_from(path, "jsonl", 99, index=place)) for place in (None, index)]
    assert listed[0][0] == (99, {"text": "a"}) and listed[0][2] == (101, {"text": "b"})
    assert [str(rows[1][1]) for rows in listed] == [str(listed[0][1][1])] * 2
    assert isinstance(listed[0][1][1], DataError) and "(line 101 of the file)" in str(listed[0][1][1])


@table(("file_format", "delimiter"), [("csv", ";"), ("csv", ","), ("tsv", "\t")])
@table("first", [1, EVERY, EVERY + 1, 3 * EVERY, 400, 401])
def test_an_index_of_a_table_leads_to_the_same_rows_despite_quoted_line_breaks(
    tmp_path, monkeypatch, file_format, delimiter, first
):
    path, index = tmp_path / f"data.{file_format}", tmp_path / "index"
    lines = [f'"{row["prompt"]}"{delimiter}"{row["completion"]}\n\n""x"""' for row in ROWS]
    text = f'"prompt"{delimiter}"completion"\r\n' + "".join(
        line + ("\r\n" if n % 3 else "\n\n") for n, line in enumerate(lines)
    )
    path.write_bytes(b"\xef\xbb\xbf" + text.encode())
    expected = list(rows_from(path, file_format, first))
    assert [row["completion"] for _, row in expected] == [f'{row["completion"]}\n\n"x"' for row in ROWS[first - 1 :]]
    index.write_bytes(b"".join(entries(path, file_format)))
    read = []
    monkeypatch.setattr("training.data.files.table_reader._row", lambda *row: read.append(row) or _row(*row))
    assert list(rows_from(path, file_format, first, index=index)) == expected
    assert len(read) - len(expected) < EVERY


def test_a_row_of_a_table_that_cannot_be_read_names_the_same_line_with_and_without_an_index(tmp_path):
    path, index = tmp_path / "data.csv", tmp_path / "index"
    path.write_text("a,b\n" + '"1\n",2\n' * 99 + "1,2,3\n" + '1,2"x\n' + '1,"2"x\n')
    index.write_bytes(b"".join(_ENTRY.pack(4 + 7 * EVERY * n, 2 + 2 * EVERY * n) for n in range(2)))
    listed = []
    for place in (None, index):
        rows = rows_from(path, "csv", 99, index=place)
        listed.append([next(rows), str(next(rows)[1])])
        with pytest.raises(DataError, match=r"line 202 of the file") as caught:
            list(rows)
        listed[-1].append(str(caught.value))
    assert listed[0] == listed[1]


@table("file_format", ["jsonl", "json", "csv", "parquet"])
@table(("text", "expected"), [("QUESTION 400", [400]), ("ÜNÏCODE\n2800", [400]), ("no such", [])])
def test_a_search_ignores_case_and_reads_every_column(tmp_path, file_format, text, expected):
    found = list(search(written(tmp_path, file_format), file_format, text))
    assert [row["row"] for row in found if "row" in row] == expected


def test_a_search_finds_numbers_and_nested_texts_and_ends_at_its_limit(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": [{"b": {"c": "Deep"}}], "n": 12345}\n' + '{"t": "often"}\n' * (MATCHES + 5))
    assert [row["row"] for row in search(path, "jsonl", "deep")] == [1]
    assert [row["row"] for row in search(path, "jsonl", "1234")] == [1]
    *found, last = search(path, "jsonl", "often")
    assert len(found) == MATCHES and last == {"read": MATCHES + 2, "more": True}


def test_long_values_are_cut_and_named(tmp_path):
    row = document(3, {"short": "a", "long": "b" * 50, "turns": [{"role": "user", "content": "c" * 50}], "x": None}, 20)
    assert row["cut"] == ["long", "turns"]
    assert row["values"]["long"] == "b" * 20 and row["values"]["x"] is None
    assert row["values"]["turns"][0]["content"] == "c" * 15


def test_values_without_a_json_type_become_text():
    row = document(1, {"nan": float("nan"), "bytes": b"ab", "number": 1.5}, 100)
    assert row["values"] == {"nan": "nan", "bytes": "b'ab'", "number": 1.5}


def test_a_page_of_very_long_rows_ends_early(tmp_path):
    path = tmp_path / "data.jsonl"
    path.write_text((json.dumps({"text": "x" * 1_000_000}) + "\n") * 10)
    assert len(list(page(path, "jsonl", 1, 10, 1_000_000, None))) == 5
