"""Detects the format of a file, by its content first and its name second, and opens it. Invalid bytes in text raise no error."""

import codecs
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from training.errors import DataError

FORMATS = ("json", "jsonl", "csv", "tsv", "parquet", "arrow", "txt")
ENDINGS = tuple(f".{name}" for name in FORMATS) + tuple(
    f".{name}.gz" for name in FORMATS if name not in ("parquet", "arrow")
)
GIVE = "Use JSON, JSONL, CSV, TSV or text (also as .gz), Parquet or Arrow, or a zip of such files."
EXPANDED_BYTES = 256 * 2**20
_MOST_TIMES = 200
ZIP = b"PK\x03\x04"
_HEAD_BYTES = 2**18
_GZIP = b"\x1f\x8b"
_OTHER_NAMES = {"ndjson": "jsonl", "tab": "tsv", "text": "txt"}
_MAGIC = {
    b"\x7fELF": "is a program (ELF), not data.",
    ZIP: "is a zip archive or an office document inside another file.",
    b"7z\xbc\xaf": "is a 7z archive. Archives are not supported.",
    b"Rar!": "is a rar archive. Archives are not supported.",
    b"BZh": "is compressed with bzip2.",
    b"\xfd7zXZ": "is compressed with xz.",
    b"\x28\xb5\x2f\xfd": "is compressed with zstd.",
    b"%PDF": "is a PDF document.",
    b"\x89PNG": "is a picture (PNG).",
    b"SQLite format 3": "is an SQLite database.",
    b"\x80\x04\x95": "is a Python pickle, which can run code.",
    b"\xff\xfe\0\0": "is encoded as UTF-32.",
    b"\0\0\xfe\xff": "is encoded as UTF-32.",
    b"\xff\xfe": "is encoded as UTF-16.",
    b"\xfe\xff": "is encoded as UTF-16.",
}
_ARROW = (b"ARROW1", b"\xff\xff\xff\xff")  # the file and the stream format
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_BAD_BYTE = re.compile("[\udc80-\udcff]")


def file_format(path: Path, name: str) -> str:
    """The format of a file: json, jsonl, csv, tsv, parquet, arrow or txt, with the suffix `.gz` if it is compressed. Raises
    DataError if the file cannot be read, is empty, or has another format."""
    try:
        with path.open("rb") as stream:
            head = stream.read(_HEAD_BYTES)
        if not head.startswith(_GZIP):
            if name.lower().endswith(".gz") and head:
                raise DataError("is named .gz but is not compressed.", f"Rename it to {name[:-3]}.")
            return _format(head, _ending(name))
        with open_bytes(path) as stream:
            head = stream.read(_HEAD_BYTES)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}.", "Check the path and its permissions.") from None
    if not name.lower().endswith(".gz"):
        raise DataError("is compressed with gzip, but is not named .gz.", f"Rename it to {name}.gz.")
    if head.startswith(b"PAR1"):
        raise DataError("is Parquet inside gzip.", "Unpack it: Parquet has its own compression.")
    return _format(head, _ending(name[:-3])) + ".gz"


@contextmanager
def open_bytes(path: Path) -> Iterator[BinaryIO]:
    """The file's bytes, unpacked if it is gzip. Raises DataError if the gzip is damaged, or expands beyond the limit."""
    with path.open("rb") as stream:
        packed = stream.peek(2).startswith(_GZIP)
        raw: Any = _Unpacked(stream, path.stat().st_size) if packed else stream
        with io.BufferedReader(raw, 2**20) if packed else stream as reader:
            yield cast(BinaryIO, reader)


@contextmanager
def open_text(path: Path, offset: int = 0) -> Iterator[TextIO]:
    """A text file, unpacked if it is gzip, with unchanged line ends and without a byte order mark.

    Bytes that are not UTF-8 do not raise; `line_fault` finds them. `offset` is the byte at which a line of a file begins that is
    not gzip.
    """
    with open_bytes(path) as stream:
        if offset:
            stream.seek(offset)
        yield io.TextIOWrapper(stream, "utf-8" if offset else "utf-8-sig", errors="surrogateescape", newline="")


def first_byte(path: Path) -> int:
    """The offset of the first character, after a byte order mark."""
    with path.open("rb") as stream:
        return len(codecs.BOM_UTF8) if stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0


def byte_count(text: str) -> int:
    """Bytes of a text that `open_text` read."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogateescape"))


def line_fault(line: str) -> DataError | None:
    """The error of a line with bytes that are not UTF-8, or with a NUL; None for a valid line."""
    match = None if line.isascii() else _BAD_BYTE.search(line)
    if match is not None:
        byte = ord(match[0]) - 0xDC00
        return DataError(
            f"is not UTF-8 (byte 0x{byte:02x} at character {match.start() + 1}).", "Save the file as UTF-8."
        )
    return DataError("contains a NUL byte.", "Remove it.") if "\0" in line else None


class _Unpacked(io.RawIOBase):
    """The content of a gzip file, up to the limit of its expansion."""

    def __init__(self, packed: BinaryIO, size: int) -> None:
        self._stream = gzip.GzipFile(fileobj=packed)
        self._expansion = Expansion(size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = self._stream.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise DataError("is a gzip file that is damaged or truncated.", "Compress or copy it again.") from None
        self._expansion.add(count)
        return count


class Expansion:
    """What a file of `size` bytes has expanded to: at most 256 MiB or 200 times its size, whichever is more."""

    def __init__(self, size: int) -> None:
        self._limit = max(EXPANDED_BYTES, _MOST_TIMES * size)
        self._expanded = 0

    def add(self, count: int) -> None:
        """Counts further bytes. Raises DataError if the file expands beyond the limit, as a decompression bomb does."""
        self._expanded += count
        if self._expanded > self._limit:
            message = f"expands to more than {self._limit // 2**20} MiB, far more than its size."
            raise DataError(message, "Unpack it and use the file itself.")


def _ending(name: str) -> str:
    ending = Path(name).suffix.lower().lstrip(".")
    return _OTHER_NAMES.get(ending, ending)


def _format(head: bytes, ending: str) -> str:
    if not head.strip():
        raise DataError("is empty.", "Give a file with at least one row.")
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(_ARROW):
        return "arrow"
    if head.startswith(_LFS_POINTER):
        message = "is a Git LFS pointer: it names a file that was not downloaded."
        raise DataError(message, "Run git lfs pull in its repository, or download the file itself.")
    for magic, message in _MAGIC.items():
        if head.startswith(magic):
            raise DataError(message, "Save it as UTF-8." if "UTF" in message else GIVE)
    if head[257:262] == b"ustar":
        raise DataError("is a tar archive. Archives are not supported.", GIVE)
    if b"\0" in head:
        wide = abs(head[::2].count(0) - head[1::2].count(0)) > len(head) // 4  # every second byte
        message = "is encoded as UTF-16." if wide else "contains NUL bytes, so it is not text."
        raise DataError(message, "Save it as UTF-8." if wide else GIVE)
    if ending in ("parquet", "arrow"):
        raise DataError(
            f"is named .{ending} but is not {ending.title()}.", f"Save it as {ending.title()}, or rename it."
        )
    return _text_format(head.removeprefix(b"\xef\xbb\xbf").lstrip(), ending)


def _text_format(head: bytes, ending: str) -> str:
    """The format of a text: a file named JSON must be JSON; any other file is JSON if its first line is."""
    line, _, rest = head.partition(b"\n")
    first = _parsed(line)
    if ending not in ("json", "jsonl"):
        if isinstance(first, dict):
            return "jsonl"
        if head.startswith(b"[") and head[1:].lstrip().startswith(b"{"):
            return "json"
        if ending in ("csv", "tsv", "txt", ""):
            return ending or "csv"
        raise DataError(f"has the unknown ending .{ending}.", GIVE)
    if head.startswith(b"[") and not (ending == "jsonl" and isinstance(first, list) and rest.strip()):
        return "json"
    if ending == "jsonl" and head.startswith((b"[", b"{")):
        return "jsonl"
    if head.startswith(b"{"):
        return "jsonl" if first is not None and rest.lstrip().startswith(b"{") else "json"
    message = f"is named .{ending} but does not start with an object or a list."
    raise DataError(message, "Each row is one JSON object.", line=1)


def _parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None
