"""Rows from JSON and JSONL, with what JSON's own parser lets pass: keys given twice, NaN, numbers without end."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from training.example import Row, kind_of
from training.failure import DataError
from training.files import line_fault, open_text

LONGEST_ROW = 16 * 2**20  # characters; a row of a million tokens has about 4 million
_CHUNK = 2**20
_DIGITS = 4000  # Python turns no longer text into a whole number
_EDGE = 16  # how near the end of what was read a value may break off
_TOO_LONG = DataError(
    f"is longer than {LONGEST_ROW // 2**20} MiB: no model reads a row of that length.",
    "Split it into rows, or delete it.",
)
_TOO_DEEP = DataError("is nested too deeply to be a row of data.", "Each row is a flat object of texts or messages.")


class StrictDecoder:
    """JSON's parser, keeping the first thing wrong in what it parsed last besides its syntax in `fault`."""

    def __init__(self) -> None:
        self.fault: DataError | None = None
        hooks: Any = {"parse_constant": self._constant, "parse_int": self._whole}
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object, **hooks)

    def decode(self, text: str, start: int = 0) -> tuple[Any, int]:
        """The value that begins at `start`, and where it ends.

        Raises:
            json.JSONDecodeError, RecursionError: as JSON's own.
        """
        self.fault = None
        return self._decoder.raw_decode(text, start)

    def _object(self, pairs: list[tuple[str, Any]]) -> Row:
        values = dict(pairs)
        if len(values) != len(pairs):
            key = Counter(name for name, _ in pairs).most_common(1)[0][0]
            self.fault = DataError(f"has the key {key!r} twice in one object.", "Keep one of them.", field=key)
        return values

    def _constant(self, name: str) -> None:
        self.fault = DataError(f"holds {name}, which is no JSON.", "Write null, or delete the value.")

    def _whole(self, digits: str) -> int:
        if len(digits) > _DIGITS:
            self.fault = DataError(f"holds a number of {len(digits)} digits.", "Write it as text, in quotes.")
            return 0
        return int(digits)


def read_jsonl(path: Path) -> Iterator[Row | DataError]:
    """An object a line. A line that is none comes as the error that says why."""
    decoder = StrictDecoder()
    row = 0
    with open_text(path) as stream:
        for number, line in enumerate(iter(lambda: stream.readline(LONGEST_ROW), ""), 1):
            if len(line) == LONGEST_ROW:
                yield _TOO_LONG
                return
            start = len(line) - len(line.lstrip())
            if start == len(line):
                continue
            row += 1
            found = _parse_line(decoder, line, start)
            if isinstance(found, DataError) and number != row:
                found = DataError(f"{found.message[:-1]} (line {number} of the file).", found.fix, field=found.field)
            yield found


def _parse_line(decoder: StrictDecoder, line: str, start: int) -> Row | DataError:
    fault = line_fault(line)
    if fault is not None:
        return fault
    try:
        value, end = decoder.decode(line, start)
    except json.JSONDecodeError as error:
        return _broken_line(line, error)
    except RecursionError:
        return _TOO_DEEP
    if line[end:].strip():
        what = f"has more behind the object, from column {end + 1} on."
        return DataError(what, "Give each object a line of its own, without commas between them.")
    return decoder.fault or as_row(value)


def _broken_line(line: str, error: json.JSONDecodeError) -> DataError:
    if line.strip() in ("{", "["):
        return DataError("is spread over several lines.", "Write each object on one line, or name the file .json.")
    cut = not line.endswith("\n") and (error.pos >= len(line.rstrip()) - _EDGE or error.msg.startswith("Unterminated"))
    what = "the line is cut off" if cut else f"{error.msg} at column {error.colno}"
    return DataError(f"is not valid JSON: {what}.", "Each line is one JSON object; mend or delete this one.")


def as_row(value: Any) -> Row | DataError:
    """The value where it is an object, or the error that it is none."""
    if isinstance(value, dict):
        return value
    return DataError(f"is {kind_of(value)}, not an object.", "Each row is one JSON object with named values.")


def read_json(path: Path) -> Iterator[Row | DataError]:
    """The objects of one JSON list, read piece by piece, so that a large file needs no more memory than a small one.

    Raises:
        DataError: the file is no list, or breaks off.
    """
    with open_text(path) as stream:
        pieces = _Pieces(iter(lambda: stream.read(_CHUNK), ""))
        if pieces.next_mark() != "[":
            raise _one_object(pieces)
        pieces.skip(1)
        if pieces.next_mark() == "]":
            pieces.skip(1)
        else:
            yield from _elements(pieces)
        if pieces.next_mark():
            raise pieces.broken("there is more behind the end of the list")


def _elements(pieces: "_Pieces") -> Iterator[Row | DataError]:
    while True:
        value = pieces.value()
        yield pieces.decoder.fault or as_row(value)
        mark = pieces.next_mark()
        if mark not in ("]", ","):
            raise pieces.broken("a comma is missing between two rows" if mark else "the file is cut off")
        pieces.skip(1)
        if mark == "]":
            return
        if pieces.next_mark() == "]":
            raise pieces.broken("a comma stands before the end of the list")


def _one_object(pieces: "_Pieces") -> DataError:
    value = pieces.value()
    inner = [key for key, values in value.items() if isinstance(values, list)] if isinstance(value, dict) else []
    fix = (
        f"Save the list under {inner[0]!r} as the whole file." if inner else "Put the rows into a list: [{...}, {...}]."
    )
    return DataError("is one object, not a list of rows.", fix)


class _Pieces:
    """A long JSON text of which only the part around the current value is in memory."""

    def __init__(self, chunks: Iterator[str]) -> None:
        self.decoder = StrictDecoder()
        self._chunks = chunks
        self._text, self._at, self._whole = "", 0, False
        self._lines, self._column, self._rows = 1, 0, 0  # of what was let go

    def next_mark(self) -> str:
        """The next character that is no white space; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self, count: int) -> None:
        self._at += count

    def value(self) -> Any:
        """The value that begins here.

        Raises:
            DataError: there is none, or none of a reasonable length and depth.
        """
        self._rows += 1
        while True:
            try:
                value, self._at = self.decoder.decode(self._text, self._at)
                return value
            except RecursionError:
                raise self._located(_TOO_DEEP) from None
            except json.JSONDecodeError as error:
                unfinished = error.msg.startswith("Unterminated") or error.pos >= len(self._text) - _EDGE
                if len(self._text) - self._at > LONGEST_ROW:
                    raise self._located(_TOO_LONG) from None
                if not unfinished or not self._more():
                    self._at = error.pos
                    raise self.broken("the file is cut off" if unfinished else error.msg) from None

    def broken(self, what: str) -> DataError:
        """What is wrong here, with the line and column of the file."""
        before = self._text[: self._at]
        column = self._at - before.rfind("\n") + (0 if "\n" in before else self._column)
        line = self._lines + before.count("\n")
        fix = "Mend the file there."
        return DataError(f"is not valid JSON: {what} (line {line}, column {column}).", fix, line=self._rows)

    def _located(self, error: DataError) -> DataError:
        return DataError(error.message, error.fix, line=self._rows)

    def _more(self) -> bool:
        """Reads on: what is behind us is let go, and each time as much again is read as is still needed."""
        gone, kept = self._text[: self._at], self._text[self._at :]
        self._lines += gone.count("\n")
        self._column = len(gone) - gone.rfind("\n") - 1 + (0 if "\n" in gone else self._column)
        parts, wanted = [kept], max(_CHUNK, len(kept))
        while wanted > 0 and (chunk := next(self._chunks, "")):
            self._check(chunk, parts)
            parts.append(chunk)
            wanted -= len(chunk)
        self._text, self._at = "".join(parts), 0
        return len(self._text) > len(kept)

    def _check(self, chunk: str, before: list[str]) -> None:
        fault = line_fault(chunk)
        if fault is not None:
            faults = [line_fault(line) for line in chunk.split("\n")]
            place = next(index for index, found in enumerate(faults) if found)
            line = self._lines + sum(part.count("\n") for part in before) + place
            found = faults[place] or fault
            raise DataError(f"{found.message[:-1]} (line {line} of the file).", found.fix)
