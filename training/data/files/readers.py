"""Reads the rows of a file of any known format, one at a time. No torch.

`python -m training.data.files.readers FILE NAME [FILE NAME ...]` prints the rows of several checked files as one JSONL. Like the
inspection it runs with limits and writes no file; the worker stores its output.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from training.data.example import Row
from training.data.files.formats import Expansion, file_format, line_fault, open_text
from training.data.files.json_reader import LONGEST_ROW, read_json, read_jsonl
from training.data.files.table_reader import DELIMITERS, check_columns, read_table
from training.data.survey import Issue
from training.errors import DataError

_BATCH_ROWS = 256
REFUSED = 3
"""The exit status if a file cannot be read; stderr then has the problem as JSON."""


def read_rows(path: Path, file_format: str) -> Iterator[Row]:
    """Yields the rows of a file of that format. Raises DataError if a row cannot be read; names the first one."""
    for number, row in enumerate(read_records(path, file_format), 1):
        if isinstance(row, DataError):
            raise DataError(row.message, row.fix, line=number, field=row.field)
        yield row


def read_records(path: Path, file_format: str) -> Iterator[Row | DataError]:
    """As `read_rows`, but yields the error in place of a row that cannot be read. Raises DataError if the rest of the file cannot
    be read."""
    readers: dict[str, Any] = {
        "json": read_json,
        "jsonl": read_jsonl,
        **{name: partial(read_table, delimiter=delimiter) for name, delimiter in DELIMITERS.items()},
        "txt": _read_text,
        "parquet": read_parquet,
        "arrow": _read_arrow,
    }
    records: Iterator[Row | DataError] = readers[file_format.removesuffix(".gz")](path)
    return records


def text_reason(path: Path) -> str:
    """The reason for the rows of a text file, as a sentence."""
    paragraphs = "every paragraph is one row: they are separated by blank lines"
    return paragraphs if _has_paragraphs(path) else "every line is one row: there are no blank lines between them"


def _read_text(path: Path) -> Iterator[Row | DataError]:
    """Yields paragraphs if there are blank lines, else lines. One row for the whole file would be truncated."""
    paragraphs = _has_paragraphs(path)
    with open_text(path) as stream:
        paragraph = ""
        for line in iter(lambda: stream.readline(LONGEST_ROW), ""):
            if line.strip():
                paragraph += line
            if paragraph and (not paragraphs or not line.strip() or len(paragraph) >= LONGEST_ROW):
                yield _as_text(paragraph)
                paragraph = ""
        if paragraph:
            yield _as_text(paragraph)


def _as_text(paragraph: str) -> Row | DataError:
    if len(paragraph) >= LONGEST_ROW:
        return DataError(f"is longer than {LONGEST_ROW // 2**20} MiB.", "Split it with blank lines.")
    return line_fault(paragraph) or {"text": paragraph.strip("\r\n")}


def _has_paragraphs(path: Path) -> bool:
    """True if there is a blank line between two non-blank lines."""
    filled = gap = False
    with open_text(path) as stream:
        for line in iter(lambda: stream.readline(LONGEST_ROW), ""):
            if line.strip():
                if gap:
                    return True
                filled = True
            else:
                gap = filled
    return False


def read_parquet(path: Path, first: int = 1) -> Iterator[Row | DataError]:
    """Yields the rows of a Parquet file from number `first` on; row groups before it are not read."""
    import pyarrow
    from pyarrow import parquet

    size = path.stat().st_size
    expansion = Expansion(size)
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            check_columns(file.schema_arrow.names)
            groups = range(file.metadata.num_row_groups)
            Expansion(size).add(sum(file.metadata.row_group(group).total_byte_size for group in groups))
            before, row_groups = _groups_from(file.metadata, first)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, row_groups=row_groups):
                skipped = min(max(first - 1 - before, 0), batch.num_rows)
                before += batch.num_rows
                yield from _within(batch.slice(skipped).to_pylist(), expansion)
    except (UnicodeDecodeError, pyarrow.ArrowException, OSError) as error:
        raise _damaged(error, "Parquet") from None


def _read_arrow(path: Path) -> Iterator[Row | DataError]:
    """The rows of an Arrow file, or of a stream of Arrow's record batches, as `datasets` saves them."""
    import pyarrow
    from pyarrow import ipc

    expansion = Expansion(path.stat().st_size)
    try:
        with pyarrow.memory_map(str(path)) as source:
            is_file = source.read(6) == b"ARROW1"
            source.seek(0)
            reader = ipc.open_file(source) if is_file else ipc.open_stream(source)
            check_columns(reader.schema.names)
            for batch in (reader.get_batch(index) for index in range(reader.num_record_batches)) if is_file else reader:
                batch.validate(full=True)
                for start in range(0, batch.num_rows, _BATCH_ROWS):
                    yield from _within(batch.slice(start, _BATCH_ROWS).to_pylist(), expansion)
    except (UnicodeDecodeError, pyarrow.ArrowException, OSError) as error:
        raise _damaged(error, "Arrow") from None


def _damaged(error: Exception, kind: str) -> DataError:
    if isinstance(error, UnicodeDecodeError):
        return DataError("contains text that is not UTF-8.", "Save the file with UTF-8 texts.")
    cause = (str(error).splitlines() or [""])[0].rstrip(". ")
    return DataError(f"is damaged or truncated {kind}: {cause}.", "Save or copy the file again.")


def _groups_from(metadata: Any, first: int) -> tuple[int, list[int]]:
    """The row groups from that of row `first` on, and the number of rows before them."""
    before, group = 0, 0
    while group < metadata.num_row_groups and before + metadata.row_group(group).num_rows < first:
        before += metadata.row_group(group).num_rows
        group += 1
    return before, list(range(group, metadata.num_row_groups))


def _within(rows: list[Row], expansion: Expansion) -> list[Row]:
    """The rows, counted as decoded: many of them may share one value of a dictionary, a run or a view. Raises DataError if the
    file has expanded beyond the limit."""
    expansion.add(sum(map(_size, rows)))
    return rows


def _size(value: Any) -> int:
    """About the bytes of a decoded value."""
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_size, value.values()))
    return sum(map(_size, value)) if isinstance(value, list | tuple) else 8


def main(arguments: list[str]) -> int:
    for file, name in zip(arguments[::2], arguments[1::2], strict=True):
        path = Path(file)
        try:
            for row in read_rows(path, file_format(path, name)):
                # Values without a JSON type (dates, decimals, bytes) become text.
                sys.stdout.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
        except DataError as error:
            sys.stderr.write(json.dumps(asdict(Issue.of(error, name))))
            return REFUSED
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
