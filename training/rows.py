"""Reading a data set's rows, finding out what shape they have, and saying what is wrong with one. No torch.

`python -m training.rows FILE [--name NAME]` checks a whole file and prints the finding as one JSON object, so that a file
somebody uploaded can be read in a process of its own with limits on memory and time.
"""

import argparse
import csv
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training.failure import DataError
from training.shapes import Example, Row, kind_of, located, row_shape

FORMATS = ("json", "jsonl", "csv", "parquet")
SAMPLE_ROWS = 5
SAMPLE_CHARACTERS = 400
_MAGIC = {
    b"\x7fELF": "is a program (ELF), not data.",
    b"PK\x03\x04": "is a zip archive; archives are not unpacked.",
    b"\x1f\x8b": "is compressed with gzip.",
    b"7z\xbc\xaf": "is a 7z archive; archives are not unpacked.",
    b"BZh": "is compressed with bzip2.",
    b"\xfd7zXZ": "is compressed with xz.",
    b"%PDF": "is a PDF document.",
}


@dataclass(frozen=True)
class Inspection:
    """What a file holds. `sample` are its first rows with long texts cut short."""

    format: str
    shape: str
    rows: int
    columns: list[str]
    sample: list[Row]


def inspect(path: Path, name: str | None = None) -> Inspection:
    """Reads every row of a file and checks that each can train.

    Raises:
        DataError: naming the file (as `name`), the first bad row, the field and the fix.
    """
    file = name or path.name
    try:
        kind = file_format(path, file)
        rows, sample, columns, shape = 0, [], [], ""
        for rows, row in enumerate(read_rows(path, kind), 1):
            if rows == 1:
                shape, columns = row_shape(row), list(row)
            if rows <= SAMPLE_ROWS:
                sample.append(_shorten(row))
            located(row, shape, rows)
    except DataError as error:
        raise DataError(error.message, error.fix, file=file, line=error.line, field=error.field) from None
    if not rows:
        raise DataError("holds no rows.", "Give a file with at least one row.", file=file)
    return Inspection(kind, shape, rows, columns, sample)


def read_examples(path: Path) -> Iterator[Example]:
    """The rows of a checked file in the form the trainer takes."""
    shape = ""
    for number, row in enumerate(read_rows(path, file_format(path, path.name)), 1):
        shape = shape or row_shape(row)
        yield located(row, shape, number)


def file_format(path: Path, name: str) -> str:
    """json, jsonl, csv or parquet, by what the file holds first and by its name's ending second.

    Raises:
        DataError: the file cannot be read, is empty, or is none of these.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(4096)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}.", "Check the path and its permissions.") from None
    if not head.strip():
        raise DataError("is empty.", "Give a file with at least one row.")
    if head.startswith(b"PAR1"):
        return "parquet"
    for magic, message in _MAGIC.items():
        if head.startswith(magic):
            raise DataError(message, "Give JSON, JSONL, CSV or Parquet.")
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DataError("is encoded as UTF-16.", "Save it as UTF-8.")
    if b"\0" in head:
        raise DataError("holds NUL bytes, so it is not text.", "Give JSON, JSONL or CSV as UTF-8 text, or Parquet.")
    return _text_format(head.removeprefix(b"\xef\xbb\xbf").lstrip(), Path(name).suffix.lower().lstrip("."))


def _text_format(head: bytes, ending: str) -> str:
    if ending == "parquet":
        raise DataError("is named .parquet and is not Parquet.", "Write it again, or name it after what it is.")
    if head.startswith(b"["):
        return "json"
    if head.startswith(b"{"):
        return "json" if ending == "json" and not _one_object_a_line(head) else "jsonl"
    if ending in ("csv", ""):
        return "csv"
    if ending in ("json", "jsonl"):
        raise DataError(
            f"is named .{ending} and does not begin with an object or a list.", "Each row is one JSON object.", line=1
        )
    raise DataError(f"has the ending .{ending}, which is not known.", "Give a .json, .jsonl, .csv or .parquet file.")


def _one_object_a_line(head: bytes) -> bool:
    first, _, rest = head.partition(b"\n")
    return first.rstrip().endswith(b"}") and (not rest.strip() or rest.lstrip().startswith(b"{"))


def read_rows(path: Path, kind: str) -> Iterator[Row]:
    """The rows of a file of that format, one at a time where the format allows.

    Raises:
        DataError: with the row at which reading failed.
    """
    reader = {"json": _read_json, "jsonl": _read_jsonl, "csv": _read_csv, "parquet": _read_parquet}[kind]
    try:
        yield from reader(path)
    except UnicodeDecodeError as error:
        raise DataError(
            f"is not UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x}).", "Save it as UTF-8."
        ) from None
    except RecursionError:
        raise DataError(
            "is nested too deeply to be a row of data.", "Each row is a flat object of texts or messages."
        ) from None


def _read_json(path: Path) -> Iterator[Row]:
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise DataError(
            f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}).", "Mend the file there."
        ) from None
    if isinstance(values, dict):
        inner = [key for key, value in values.items() if isinstance(value, list)]
        hint = (
            f"Save the list under {inner[0]!r} as the whole file."
            if inner
            else "The file is a list of objects, one a row."
        )
        raise DataError("is one object, not a list of rows.", hint)
    for number, row in enumerate(values, 1):
        yield _object(row, number)


def _read_jsonl(path: Path) -> Iterator[Row]:
    number = 0
    with path.open(encoding="utf-8-sig") as stream:
        for number, line in enumerate(stream, 1):
            if line.strip():
                yield _object(_parse_line(line, number), number)


def _parse_line(line: str, number: int) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        cut = (
            "the line is cut off"
            if not line.endswith("\n") and error.pos >= len(line.rstrip())
            else f"{error.msg} at column {error.colno}"
        )
        raise DataError(
            f"is not valid JSON: {cut}.", "Each line is one JSON object; mend or delete this one.", line=number
        ) from None
    except DataError as error:
        raise DataError(error.message, error.fix, line=number, field=error.field) from None


def _read_csv(path: Path) -> Iterator[Row]:
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8-sig", newline="") as stream:
        reader = csv.reader(stream, strict=True)
        try:
            header = next(reader)
            doubled = [name for name in header if header.count(name) > 1]
            if doubled:
                raise DataError(
                    f"names the column {doubled[0]!r} twice.",
                    "Give each column a name of its own.",
                    line=1,
                    field=doubled[0],
                )
            for number, values in enumerate(reader, 1):
                if not values:
                    continue
                if len(values) != len(header):
                    raise DataError(
                        f"has {len(values)} values for {len(header)} columns.",
                        "Quote values that hold commas or line breaks.",
                        line=number,
                    )
                yield dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise DataError(
                f"is not valid CSV: {error}.",
                "Close every quote, and double quotes inside a value.",
                line=reader.line_num,
            ) from None


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=256):
                yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"is not whole Parquet: {str(error).splitlines()[0]}", "Write the file again.") from None


def _unique_keys(pairs: list[tuple[str, Any]]) -> Row:
    values = dict(pairs)
    if len(values) != len(pairs):
        key = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise DataError(f"has the key {key!r} twice in one object.", "Keep one of them.", field=key)
    return values


def _object(row: Any, number: int) -> Row:
    if not isinstance(row, dict):
        raise DataError(
            f"is {kind_of(row)}, not an object.", "Each row is one JSON object with named values.", line=number
        )
    return row


def _shorten(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= SAMPLE_CHARACTERS else value[:SAMPLE_CHARACTERS] + "…"
    if isinstance(value, dict):
        return {key: _shorten(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shorten(item) for item in value[:SAMPLE_ROWS]]
    return value if isinstance(value, (int, float, bool, type(None))) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description="Check that a data set can train; print the finding as JSON.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--name", help="the name to use in messages")
    arguments = parser.parse_args()
    try:
        finding = {"ok": True, **asdict(inspect(arguments.file, arguments.name))}
    except DataError as error:
        problem = {key: getattr(error, key) for key in ("file", "line", "field", "message", "fix")}
        finding = {"ok": False, "problem": problem}
    except MemoryError:
        problem = {
            "file": arguments.name or arguments.file.name,
            "line": None,
            "field": "",
            "message": "needs more memory than allowed.",
            "fix": "Save it as JSONL, which is read a row at a time.",
        }
        finding = {"ok": False, "problem": problem}
    sys.stdout.write(json.dumps(finding) + "\n")


if __name__ == "__main__":
    main()
