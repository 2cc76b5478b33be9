"""Reading a data set's rows, finding out what shape they have, and saying what is wrong with one. No torch.

`python -m training.rows FILE [--name NAME]` checks a whole file and prints the finding as one JSON object, so that a file
somebody uploaded can be read in a process of its own with limits on memory and time.
"""

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Row = dict[str, Any]
Message = dict[str, str]

FORMATS = ("json", "jsonl", "csv", "parquet")
SAMPLE_ROWS = 5
SAMPLE_CHARACTERS = 400
ROLES = ("system", "user", "assistant", "tool")
SHAPES_FIX = (
    "Name the columns messages (a list of {role, content}), prompt and completion, instruction (and input) and output, or text."
)
_MAGIC = {
    b"\x7fELF": "is a program (ELF), not data.",
    b"PK\x03\x04": "is a zip archive; archives are not unpacked.",
    b"\x1f\x8b": "is compressed with gzip.",
    b"7z\xbc\xaf": "is a 7z archive; archives are not unpacked.",
    b"BZh": "is compressed with bzip2.",
    b"\xfd7zXZ": "is compressed with xz.",
    b"%PDF": "is a PDF document.",
}


class DataError(ValueError):
    """A data set that cannot train: where (`file`, `line` from 1, `field`), what (`message`) and what to do (`fix`)."""

    def __init__(self, message: str, fix: str, *, file: str = "", line: int | None = None, field: str = "") -> None:
        place = ", ".join(part for part in (file, f"row {line}" if line else "", field) if part)
        super().__init__(f"{place + ': ' if place else ''}{message} {fix}".strip())
        self.file, self.line, self.field, self.message, self.fix = file, line, field, message, fix

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (self.message, self.fix, self.file, self.line, self.field))


def _rebuild(message: str, fix: str, file: str, line: int | None, field: str) -> DataError:
    return DataError(message, fix, file=file, line=line, field=field)


@dataclass(frozen=True)
class Inspection:
    """What a file holds. `sample` are its first rows with long texts cut short."""

    format: str
    shape: str
    rows: int
    columns: list[str]
    sample: list[Row]


@dataclass(frozen=True)
class Example:
    """A row in the form the trainer takes: chat `messages`, or `prompt` and `answer` strings (`prompt` empty for plain text)."""

    messages: list[Message] | None = None
    prompt: str = ""
    answer: str = ""


def inspect(path: Path, name: str | None = None) -> Inspection:
    """Reads every row of a file and checks that each can train.

    Raises:
        DataError: naming the file (as `name`), the first bad row, the field and the fix.
    """
    file = name or path.name
    try:
        kind = file_format(path, file)
        rows, sample, columns, shape = 0, [], [], ""
        for rows, row in enumerate(read_rows(path, kind), 1):  # noqa: B007
            if rows == 1:
                shape, columns = row_shape(row), list(row)
            if rows <= SAMPLE_ROWS:
                sample.append(_shorten(row))
            _located(row, shape, rows)
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
        yield _located(row, shape, number)


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
        raise DataError(f"is named .{ending} and does not begin with an object or a list.", "Each row is one JSON object.", line=1)
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
        raise DataError(f"is not UTF-8 (byte {error.start} is 0x{error.object[error.start]:02x}).", "Save it as UTF-8.") from None
    except RecursionError:
        raise DataError("is nested too deeply to be a row of data.", "Each row is a flat object of texts or messages.") from None


def _read_json(path: Path) -> Iterator[Row]:
    try:
        values = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_unique_keys)
    except json.JSONDecodeError as error:
        raise DataError(f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno}).", "Mend the file there.") from None
    if isinstance(values, dict):
        inner = [key for key, value in values.items() if isinstance(value, list)]
        hint = f"Save the list under {inner[0]!r} as the whole file." if inner else "The file is a list of objects, one a row."
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
        cut = "the line is cut off" if not line.endswith("\n") and error.pos >= len(line.rstrip()) else f"{error.msg} at column {error.colno}"
        raise DataError(f"is not valid JSON: {cut}.", "Each line is one JSON object; mend or delete this one.", line=number) from None
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
                raise DataError(f"names the column {doubled[0]!r} twice.", "Give each column a name of its own.", line=1, field=doubled[0])
            for number, values in enumerate(reader, 1):
                if not values:
                    continue
                if len(values) != len(header):
                    raise DataError(f"has {len(values)} values for {len(header)} columns.", "Quote values that hold commas or line breaks.", line=number)
                yield dict(zip(header, values, strict=True))
        except csv.Error as error:
            raise DataError(f"is not valid CSV: {error}.", "Close every quote, and double quotes inside a value.", line=reader.line_num) from None


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
        key = next(key for key, _ in pairs if [name for name, _ in pairs].count(key) > 1)
        raise DataError(f"has the key {key!r} twice in one object.", "Keep one of them.", field=key)
    return values


def _object(row: Any, number: int) -> Row:
    if not isinstance(row, dict):
        raise DataError(f"is {_kind_of(row)}, not an object.", "Each row is one JSON object with named values.", line=number)
    return row


def row_shape(row: Row) -> str:
    """messages, prompt/completion, instruction/output or text, by the columns of a row.

    Raises:
        DataError: the columns are none of these.
    """
    if "messages" in row:
        return "messages"
    if "conversations" in row:
        return "conversations"
    if {"prompt", "completion"} <= row.keys():
        return "prompt/completion"
    if {"instruction", "output"} <= row.keys():
        return "instruction/output"
    if "text" in row:
        return "text"
    raise DataError(f"has the columns {', '.join(map(repr, row)) or 'none'}, which say nothing of prompt and answer.", SHAPES_FIX, line=1)


def _located(row: Row, shape: str, number: int) -> Example:
    try:
        return to_example(row, shape)
    except DataError as error:
        raise DataError(error.message, error.fix, line=number, field=error.field) from None


def to_example(row: Row, shape: str) -> Example:
    """One row in the form the trainer takes.

    Raises:
        DataError: a needed value is missing, empty or of the wrong type.
    """
    match shape:
        case "messages" | "conversations":
            return Example(messages=_messages(row, shape))
        case "prompt/completion" if isinstance(row.get("prompt"), list):
            return Example(messages=_messages({"messages": [*row["prompt"], *_as_list(row, "completion")]}, "messages"))
        case "prompt/completion":
            return Example(prompt=_text(row, "prompt"), answer=_filled(row, "completion"))
        case "instruction/output":
            more = row.get("input") or ""
            prompt = _filled(row, "instruction") + (f"\n\n{_text(row, 'input')}" if more else "")
            system = [{"role": "system", "content": _text(row, "system")}] if row.get("system") else []
            return Example(messages=[*system, {"role": "user", "content": prompt}, {"role": "assistant", "content": _filled(row, "output")}])
        case _:
            return Example(answer=_filled(row, "text"))


def _messages(row: Row, column: str) -> list[Message]:
    listed = row.get(column)
    if not isinstance(listed, list) or not listed:
        raise DataError(f"{column} is {_kind_of(listed)}, not a list of messages.", "Each message is {role, content}.", field=column)
    messages = [_message(entry, f"{column}[{index}]") for index, entry in enumerate(listed)]
    if not any(message["role"] == "assistant" and message["content"].strip() for message in messages):
        raise DataError("no assistant message with text in it: there is nothing to learn.", "Add the assistant's answer, or delete the row.", field=column)
    return messages


_SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant", "tool": "tool"}


def _message(entry: Any, place: str) -> Message:
    if not isinstance(entry, dict):
        raise DataError(f"is {_kind_of(entry)}, not a message.", "Each message is {role, content}.", field=place)
    role, content = entry.get("role", _SHAREGPT_ROLES.get(str(entry.get("from")))), entry.get("content", entry.get("value"))
    if role not in ROLES:
        raise DataError(f"has the role {role!r}.", f"Use one of {', '.join(ROLES)}.", field=f"{place}.role")
    if not isinstance(content, str):
        raise DataError(f"is {_kind_of(content)}, not text.", "Give the message's text.", field=f"{place}.content")
    return {"role": role, "content": content}


def _as_list(row: Row, column: str) -> list[Any]:
    value = row.get(column)
    return value if isinstance(value, list) else [{"role": "assistant", "content": _filled(row, column)}]


def _text(row: Row, column: str) -> str:
    value = row.get(column)
    if column not in row:
        raise DataError("is missing.", "Give every row this column, or delete the row.", field=column)
    if not isinstance(value, str):
        raise DataError(f"is {_kind_of(value)}, not text.", "Give text (in quotes).", field=column)
    return value


def _filled(row: Row, column: str) -> str:
    value = _text(row, column)
    if not value.strip():
        raise DataError("is empty: there is nothing to learn.", "Fill it in, or delete the row.", field=column)
    return value


def _kind_of(value: Any) -> str:
    names = {type(None): "missing (null)", bool: "true or false", list: "a list", dict: "an object", str: "text"}
    return names.get(type(value), f"a number ({value!r})" if isinstance(value, (int, float)) else f"a {type(value).__name__}")


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
        problem = {"file": arguments.name or arguments.file.name, "line": None, "field": "", "message": "needs more memory than allowed.", "fix": "Save it as JSONL, which is read a row at a time."}
        finding = {"ok": False, "problem": problem}
    sys.stdout.write(json.dumps(finding) + "\n")


if __name__ == "__main__":
    main()
