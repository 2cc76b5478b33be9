"""Harmful, damaged and unusual files (tests/data): each is refused with its problem, or imported.

One limited process reads all files of tests/data. Those that would exceed a limit are made here, and read in a process each.
"""

import gzip
import json
from dataclasses import replace

import pyarrow as pa
import pytest
from paths import TESTS
from pyarrow import parquet
from sqlmodel import select
from subtest_table import table

from app.format.dataset_text import problems_of
from training.data.row_formats import UNKNOWN
from training.errors import DataError
from worker.datasets import checking, datasets
from worker.machine import programs
from worker.machine.programs import Result
from worker.settings import get_settings
from worker.store import database as db
from worker.store.tables import Dataset

pytestmark = pytest.mark.slow

DATA = TESTS / "data"
ROW = {"prompt": "What is two and two?", "completion": "Four."}

REFUSED = {  # file: the row at fault (None: the file as a whole), and words of the message
    "empty.jsonl": (None, "is empty"),
    "blank.csv": (None, "is empty"),
    "header_only.csv": (None, "has no rows"),
    "latin1.csv": (1, "is not UTF-8 (byte 0xe9"),
    "latin1_late.jsonl": (3, "is not UTF-8 (byte 0xe9"),
    "latin1.json": (None, "is not UTF-8 (byte 0xe9 at character 15) (line 2 of the file)"),
    "utf16.csv": (None, "UTF-16"),
    "utf16_unmarked.jsonl": (None, "UTF-16"),
    "utf32.json": (None, "UTF-32"),
    "ragged.csv": (2, "1 values for 2 columns"),
    "unclosed_quote.csv": (2, "a quote is not closed (from line 3 of the file on)"),
    "stray_quote.csv": (1, "',' expected after '\"'"),
    "cut_off.jsonl": (3, "the line is truncated"),
    "one_bad_line.jsonl": (3, "not valid JSON"),
    "duplicate_keys.jsonl": (2, "the key 'completion' twice"),
    "duplicate_column.csv": (None, "the column 'text' twice"),
    "header_twice.csv": (2, "repeats the header"),
    "program.jsonl": (None, "a program"),
    "pickle.jsonl": (None, "a Python pickle"),
    "document.json": (None, "a PDF"),
    "picture.csv": (None, "a picture"),
    "archive.json": (None, "a zip archive"),
    "tar.jsonl": (None, "a tar archive"),
    "bzip2.jsonl": (None, "bzip2"),
    "database.csv": (None, "an SQLite database"),
    "cut.parquet": (None, "damaged or truncated Parquet"),
    "flipped.parquet": (None, "damaged or truncated Parquet"),
    "fake.parquet": (None, "is named .parquet but is not Parquet"),
    "fake_magic.parquet": (None, "damaged or truncated Parquet"),
    "column_twice.parquet": (None, "the column 'text' twice"),
    "no_rows.parquet": (None, "has no rows"),
    "packed.parquet.gz": (None, "Parquet inside gzip"),
    "gzip_unnamed.jsonl": (None, "Rename it to gzip_unnamed.jsonl.gz"),
    "cut.jsonl.gz": (None, "a gzip file that is damaged or truncated"),
    "not_packed.jsonl.gz": (None, "Rename it to not_packed.jsonl."),
    "all_null.jsonl": (None, "no row with a prompt and an answer"),
    "all_empty.csv": (None, "no row with a prompt and an answer"),
    "no_answer.jsonl": (None, "no row with a prompt and an answer"),
    "keys_differ.jsonl": (2, "completion: is missing"),
    "mixed_types.jsonl": (2, "completion: is a number (5), not text"),
    "late_type.jsonl": (61, "completion: is an object, not text"),
    "nan.jsonl": (2, "contains NaN"),
    "infinity.json": (1, "contains Infinity"),
    "number_as_text.jsonl": (1, "is a number (12345678901234567890), not text"),
    "endless_number.jsonl": (1, "a number with 5000 digits"),
    "nul_byte.jsonl": (None, "NUL"),
    "nul_escaped.jsonl": (2, "NUL"),
    "half_character.jsonl": (2, "half of a character (U+D83D)"),
    "wrapped_line.jsonl": (1, "Save the list under 'data' as its own file"),
    "error_page.json": (None, "is one object, not a list of rows"),
    "page.jsonl": (1, "does not start with an object or a list"),
    "list_rows.jsonl": (1, "is a list, not an object"),
    "scalar.json": (1, "does not start with an object or a list"),
    "strings.json": (1, "is text, not an object"),
    "trailing_comma.json": (2, "there is a comma before the end of the list (line 3, column 1)"),
    "missing_comma.json": (1, "a comma is missing between two rows (line 2, column 2)"),
    "cut_off.json": (2, "the file is truncated"),
    "more_behind.json": (1, "more text after the end of the list"),
    "spread.jsonl": (1, "spans several lines"),
    "commas.jsonl": (1, "without commas between them"),
    "single_quotes.jsonl": (1, "enclosed in double quotes"),
    "robot_role.jsonl": (1, "the unknown role 'robot'"),
    "null_content.jsonl": (1, "missing (null), not text"),
    "picture_part.jsonl": (1, "'image_url', not text"),
    "no_prompt.jsonl": (1, "no common beginning, and there is no prompt"),
    "notes.doc": (None, "the unknown ending .doc"),
}

TAKEN = {  # file: the format of its rows, their number, and words of the warnings
    "wrapped.json": ("text", 1, []),
    "formulas.csv": ("prompt/completion", 2, []),
    "byte_order_mark.csv": ("text", 1, []),
    "line_ends.jsonl": ("prompt/completion", 2, []),
    "blank_lines.jsonl": ("prompt/completion", 2, []),
    "unended.jsonl": ("prompt/completion", 2, []),
    "line_separator.jsonl": ("text", 1, []),
    "semicolons.csv": ("prompt/completion", 1, []),
    "rows.tsv": ("prompt/completion", 1, []),
    "rows.csv.gz": ("text", 1, []),
    "paragraphs.txt": ("text", 2, []),
    "lines.txt": ("text", 3, []),
    "deep_beside.jsonl": ("text", 1, []),
    "one_empty.jsonl": ("prompt/completion", 3, ["row 2: completion is empty"]),
    "half_filled.csv": ("alpaca", 3, ["row 2: instruction is empty", "row 3: output is empty"]),
    "mixed_formats.jsonl": ("prompt/completion", 3, ["several formats: 2 of prompt/completion, 1 of text"]),
    "odd_label.jsonl": (
        "unpaired preference",
        2,
        ["several formats", "row 2: label is true or false in 1 and text in 1"],
    ),
    "unwanted.jsonl": ("unpaired preference", 2, ["row 2: label is false"]),
    "large_number.jsonl": ("prompt/completion", 1, ["id contains an integer above 9,007,199,254,740,992"]),
    "optional_keys.jsonl": ("prompt/completion", 2, ["source_of is missing in 1 of 2 rows"]),
    "late_type_beside.jsonl": ("prompt/completion", 4, ["row 4: score is a number in 3 and text in 1"]),
    "unknown_columns.jsonl": (UNKNOWN, 1, ["the columns 'question' and 'answers'"]),
    "nested.jsonl": (UNKNOWN, 1, ["text is an object"]),
}


@pytest.fixture(scope="module")
def reports():
    """What the reader prints about each file of tests/data."""
    files = sorted(DATA.iterdir())
    reader = replace(
        programs.INSPECTION, module="tests.programs.inspect_files", unconfined="it reads many", seconds=100
    )
    read = programs.run_limited(reader, [str(file) for file in files])
    assert read.code == 0, read.errors.decode()
    return {file.name: line for file, line in zip(files, read.output.splitlines(), strict=True)}


@pytest.fixture
def read_before(home, reports, monkeypatch):
    """An installation in which files of tests/data have been read by the process of `reports`."""

    def run_limited(module, arguments, _):
        _, name = arguments
        assert module == checking.READER
        return Result(0, reports[name.removeprefix("--name=")])

    monkeypatch.setattr(programs, "run_limited", run_limited)


def left_behind():
    """The files and database rows of the installation; empty if nothing was imported."""
    settings = get_settings()
    files = [path for folder in (settings.datasets_dir, settings.uploads_dir) for path in folder.rglob("*")]
    with db.read() as session:
        return files + list(session.exec(select(Dataset)).all())


def refused(path):
    with pytest.raises(DataError) as caught:
        datasets.add_file(path=path, name=path.name)
    assert left_behind() == []
    assert caught.value.file == path.name and caught.value.fix
    return caught.value


def test_every_test_file_is_in_one_of_the_tables():
    assert {path.name for path in DATA.iterdir()} == REFUSED.keys() | TAKEN.keys()


@table("name", REFUSED)
def test_an_invalid_file_is_refused_with_its_problem_and_without_leftovers(read_before, name):
    row, words = REFUSED[name]
    error = refused(DATA / name)
    assert words in str(error)
    assert error.line == row


@table("name", TAKEN)
def test_an_unusual_file_is_imported_with_warnings(read_before, name):
    shape, rows, words = TAKEN[name]
    dataset = datasets.add_file(path=DATA / name, name=name)
    assert (dataset.row_format, dataset.rows) == (shape, rows)
    warnings = [f"row {issue['line']}: {issue['field']} {issue['message']}" for issue in dataset.warnings]
    assert len(warnings) == len(words)
    assert all(word in sentence for word, sentence in zip(words, warnings, strict=True))
    assert datasets.path_of(dataset).read_bytes() == (DATA / name).read_bytes()


# Files too large to keep here


def deep_row(path):
    path.write_text('{"text": ' + "[" * 20_000 + "]" * 20_000 + "}\n")


def deep_list(path):
    path.write_text("[" * 20_000)


def long_line(path):
    path.write_text('{"text": "' + "x" * 60_000_000 + '"}\n')


def long_cell(path):
    path.write_text('text\n"' + "x" * 20_000_000 + '"\n')


def late_nul(path):
    path.write_bytes(b"text\n" + b"a line of text\n" * 20_000 + b"a\0b\n")


def bomb(path):
    """1 GB of zeros in 1 MB: a hundred times the same 10 MB, which gzip reads as one file."""
    path.write_bytes(gzip.compress(bytes(10**7)) * 100)


def bomb_of_rows(path):
    """1 GB of good rows in 1 MB."""
    row = json.dumps(ROW | {"more": "x" * 100_000}) + "\n"
    path.write_bytes(gzip.compress(row.encode() * 100) * 100)


def wide_parquet(path):
    """2 MB that declare 20 GB: the same text of 1 MB in 20,000 rows."""
    index = pa.array([0] * 20_000, pa.int32())
    column = pa.DictionaryArray.from_arrays(index, pa.array(["x" * 2**20]))
    parquet.write_table(pa.table({"text": column}), path, compression="none")


def many_columns(path):
    path.write_text(json.dumps({f"column {number}": "x" * 50 for number in range(200_000)}) + "\n")


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (deep_row, "deep.jsonl", "nested too deeply"),
        (deep_list, "deep.json", "nested too deeply"),
        (long_line, "long.jsonl", "longer than 16 MiB"),
        (long_cell, "long.csv", "a quote is not closed"),
        (late_nul, "nul.csv", "NUL"),
        (bomb, "zeros.jsonl.gz", "NUL"),
        (bomb_of_rows, "rows.jsonl.gz", "expands to more than"),
        (wide_parquet, "wide.parquet", "expands to more than"),
    ],
)
def test_a_file_that_would_exhaust_memory_or_disk_is_refused(home, tmp_path, make, name, words):
    make(tmp_path / name)
    assert words in str(refused(tmp_path / name))


def many_table_columns(path):
    names = [f"column {number}" for number in range(100_000)]
    path.write_text(",".join(names) + "\n" + ",".join("x" * 100_000) + "\n")


def many_parquet_columns(path):
    parquet_of(path, {f"column {number}": pa.array(["x"]) for number in range(20_000)}, write_statistics=False)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (many_columns, "columns.jsonl"),
        (many_table_columns, "columns.csv"),
        pytest.param(many_parquet_columns, "columns.parquet", marks=pytest.mark.nightly),
    ],
)
def test_thousands_of_columns_are_shortened(home, tmp_path, make, name):
    make(tmp_path / name)
    dataset = datasets.add_file(path=tmp_path / name, name=name)
    assert dataset.row_format == UNKNOWN
    assert len(dataset.columns) == 500
    assert len(json.dumps([dataset.columns, dataset.sample, dataset.warnings])) < 200_000


def parquet_of(path, columns, **options):
    parquet.write_table(pa.table(columns), path, **options)


def dictionary(kind, rows=20_000):
    """A column in which all rows share one text of 1 MB."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * 2**20], kind))


def wide_in_lists(path):
    lists = pa.ListArray.from_arrays(pa.array(range(20_001), pa.int32()), dictionary(pa.string()))
    parquet_of(path, {"text": lists}, compression="none")


def wide_in_structs(path):
    rows = pa.StructArray.from_arrays([dictionary(pa.string())], ["text"])
    parquet_of(path, {"text": pa.array(["a"] * 20_000), "row": rows}, compression="none")


def wide_in_maps(path):
    keys = pa.array(["text"] * 20_000)
    maps = pa.MapArray.from_arrays(pa.array(range(20_001), pa.int32()), keys, dictionary(pa.string()))
    parquet_of(path, {"row": maps}, compression="none")


def one_huge_page(path):
    """2 GB of zeros in 0.2 MB, as one value."""
    parquet_of(path, {"text": pa.array(["\0" * (2**31 - 100)])}, compression="zstd", use_dictionary=False)


def many_nulls(path):
    """A hundred million rows without a value, in a few bytes."""
    parquet_of(path, {"text": pa.nulls(10**8, pa.string())}, row_group_size=10**8)


def deep_types(path):
    kind = pa.string()
    for _ in range(400):
        kind = pa.struct([("a", kind)])
    parquet_of(path, {"text": pa.nulls(3, kind)})


def zstd(path):
    path.write_bytes(pa.compress(bytes(10**8), "zstd", asbytes=True))


def arrow_of(path, column, compression=None, new=pa.ipc.new_file):
    table = pa.table({"text": column})
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.OSFile(str(path), "wb") as sink, new(sink, table.schema, options=options) as writer:
        writer.write_table(table)


def arrow_file(path):
    arrow_of(path, dictionary(pa.string()), "zstd")


def arrow_stream(path):
    arrow_of(path, dictionary(pa.large_string()), new=pa.ipc.new_stream)


def arrow_runs(path):
    """A hundred thousand times the same text of 1 MB."""
    arrow_of(path, pa.RunEndEncodedArray.from_arrays(pa.array([100_000], pa.int32()), pa.array(["x" * 2**20])))


def arrow_list_views(path):
    """Twenty thousand lists that share one text of 1 MB."""
    places, sizes = pa.array([0] * 20_000, pa.int32()), pa.array([1] * 20_000, pa.int32())
    arrow_of(path, pa.ListViewArray.from_arrays(places, sizes, pa.array(["x" * 2**20])))


@pytest.mark.parametrize(
    ("make", "name", "words"),
    [
        (wide_in_lists, "lists.parquet", "expands to more than"),
        (wide_in_structs, "structs.parquet", "expands to more than"),
        (wide_in_maps, "maps.parquet", "expands to more than"),
        pytest.param(one_huge_page, "page.parquet", "expands to more than", marks=pytest.mark.nightly),
        pytest.param(many_nulls, "nulls.parquet", "to read", marks=pytest.mark.nightly),
        (deep_types, "types.parquet", "deeply nested"),
        (zstd, "rows.jsonl", "zstd"),
        (arrow_file, "rows.arrow", "expands to more than"),
        (arrow_stream, "rows.arrow", "expands to more than"),
        (arrow_runs, "runs.arrow", "expands to more than"),
        (arrow_list_views, "views.arrow", "expands to more than"),
    ],
)
def test_a_small_file_that_would_become_gigabytes_is_refused(home, tmp_path, make, name, words):
    make(tmp_path / name)
    assert words in str(problems_of(refused(tmp_path / name)))
