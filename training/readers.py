"""The rows of a file of any known format, one at a time. No torch."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from training.example import Row
from training.failure import DataError
from training.files import EXPANDED_BYTES, EXPANSION, check_expansion, line_fault, open_text
from training.json_rows import LONGEST_ROW, read_json, read_jsonl
from training.table_rows import read_table

_BATCH_ROWS = 256


def read_rows(path: Path, file_format: str) -> Iterator[Row]:
    """The rows of a file of that format.

    Raises:
        DataError: naming the first row that cannot be read.
    """
    for number, row in enumerate(read_records(path, file_format), 1):
        if isinstance(row, DataError):
            raise DataError(row.message, row.fix, line=number, field=row.field)
        yield row


def read_records(path: Path, file_format: str) -> Iterator[Row | DataError]:
    """As `read_rows`, with the error in place of each row that cannot be read where the rows after it can.

    Raises:
        DataError: nothing more can be read.
    """
    readers: dict[str, Any] = {
        "json": read_json,
        "jsonl": read_jsonl,
        "csv": read_table,
        "tsv": partial(read_table, delimiter="\t"),
        "txt": _read_text,
        "parquet": _read_parquet,
    }
    records: Iterator[Row | DataError] = readers[file_format.removesuffix(".gz")](path)
    return records


def text_reason(path: Path) -> str:
    """What is a row in a text file, as a sentence."""
    apart = "every paragraph is one row: blank lines stand between them"
    return apart if _has_paragraphs(path) else "every line is one row: there are no blank lines between them"


def _read_text(path: Path) -> Iterator[Row | DataError]:
    """Paragraphs, where blank lines part them; else lines. One row a file would teach nothing but its beginning."""
    blank_parts = _has_paragraphs(path)
    with open_text(path) as stream:
        paragraph = ""
        for line in iter(lambda: stream.readline(LONGEST_ROW), ""):
            if line.strip():
                paragraph += line
            if paragraph and (not blank_parts or not line.strip() or len(paragraph) >= LONGEST_ROW):
                yield _as_text(paragraph)
                paragraph = ""
        if paragraph:
            yield _as_text(paragraph)


def _as_text(paragraph: str) -> Row | DataError:
    if len(paragraph) >= LONGEST_ROW:
        return DataError(f"is longer than {LONGEST_ROW // 2**20} MiB.", "Part it with blank lines.")
    return line_fault(paragraph) or {"text": paragraph.strip("\r\n")}


def _has_paragraphs(path: Path) -> bool:
    """Whether a blank line stands between two that are not."""
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


def _read_parquet(path: Path) -> Iterator[Row | DataError]:
    import pyarrow
    from pyarrow import parquet

    limit = max(EXPANDED_BYTES, EXPANSION * path.stat().st_size)
    seen = 0
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            _check_columns(file.schema_arrow.names)
            groups = range(file.metadata.num_row_groups)
            check_expansion(sum(file.metadata.row_group(group).total_byte_size for group in groups), limit)
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                seen += sum(_size(column) for column in batch.columns)
                check_expansion(seen, limit)
                yield from batch.to_pylist()
    except UnicodeDecodeError:
        raise DataError("holds text that is not UTF-8.", "Write the file again with its texts as UTF-8.") from None
    except (pyarrow.ArrowException, OSError) as error:
        cause = (str(error).splitlines() or [""])[0].rstrip(". ")
        raise DataError(f"is damaged or cut Parquet: {cause}.", "Write or copy the file again.") from None


def _size(column: Any) -> int:
    """Bytes of a column once every row has its own value: a dictionary holds one that many rows share."""
    from pyarrow import compute, types

    if not types.is_dictionary(column.type) or not types.is_string(column.type.value_type):
        return int(column.nbytes)
    lengths = compute.take(compute.binary_length(column.dictionary), column.indices)
    return int(compute.sum(compute.cast(lengths, "int64")).as_py() or 0)


def _check_columns(names: list[str]) -> None:
    doubled = [name for name in names if names.count(name) > 1]
    if doubled:
        message = f"names the column {doubled[0]!r} twice."
        raise DataError(message, "Give each column a name of its own.", field=doubled[0])
