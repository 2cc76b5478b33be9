"""Reads rows from JSON and JSONL. Also refuses what Python's parser accepts: duplicate keys, NaN, endless numbers."""

import json
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

from training.data.example import Row, kind_of
from training.data.files.formats import line_fault, open_text
from training.errors import DataError

LONGEST_ROW = 16 * 2**20  # characters; a row of a million tokens has about 4 million
_TURNS = ({"role", "content"}, {"from", "value"})
_CHUNK = 2**20
_DIGITS = 4000  # Python converts no longer text to an int
_EDGE = 16  # a parse error this near the end of the text means that more must be read
_TOO_LONG = DataError(
    f"is longer than {LONGEST_ROW // 2**20} MiB.",
    "Split it into several rows, or delete it.",
)
_TOO_DEEP = DataError("is nested too deeply.", "Write each row as a flat object of texts or messages.")


class StrictDecoder:
    """A JSON parser; `fault` is the first error besides syntax in the value that it parsed last."""

    def __init__(self) -> None:
        self.fault: DataError | None = None
        hooks: Any = {"parse_constant": self._constant, "parse_int": self._whole}
        self._decoder = json.JSONDecoder(object_pairs_hook=self._object, **hooks)

    def decode(self, text: str, start: int = 0) -> tuple[Any, int]:
        """The value that starts at `start`, and its end.

        Raises:
            json.JSONDecodeError, RecursionError: as `json`.
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
        self.fault = DataError(f"contains {name}, which is not valid JSON.", "Write null, or delete the value.")

    def _whole(self, digits: str) -> int:
        if len(digits) > _DIGITS:
            self.fault = DataError(f"contains a number with {len(digits)} digits.", "Write it as text, in quotes.")
            return 0
        return int(digits)


def read_jsonl(path: Path) -> Iterator[Row | DataError]:
    """Yields one object for each line, or the error if the line is not an object."""
    with open_text(path) as stream:
        yield from (record for _, record in numbered_rows(stream))


def numbered_rows(
    stream: TextIO, *, row: int = 1, number: int = 1, wanted: Callable[[int, str], bool] | None = None
) -> Iterator[tuple[int, Row | DataError]]:
    """Yields the rows of the stream with their numbers. `row` and `number` are those of its first row and line.

    A line for which `wanted(row, line)` is false is passed over without being parsed.
    """
    decoder = StrictDecoder()
    for line_number, line in enumerate(iter(lambda: stream.readline(LONGEST_ROW), ""), number):
        if len(line) == LONGEST_ROW:
            yield row, _TOO_LONG
            return
        start = len(line) - len(line.lstrip())
        if start == len(line):
            continue
        if wanted is None or wanted(row, line):
            record = _parse_line(decoder, line, start)
            if isinstance(record, DataError) and line_number != row:
                message = f"{record.message[:-1]} (line {line_number} of the file)."
                record = DataError(message, record.fix, field=record.field)
            yield row, record
        row += 1


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
        message = f"has more text after the object, from column {end + 1} on."
        return DataError(message, "Write each object on its own line, without commas between them.")
    return decoder.fault or as_row(value)


def _broken_line(line: str, error: json.JSONDecodeError) -> DataError:
    if line.strip() in ("{", "["):
        return DataError("spans several lines.", "Write each object on one line, or rename the file to .json.")
    truncated = not line.endswith("\n") and (
        error.pos >= len(line.rstrip()) - _EDGE or error.msg.startswith("Unterminated")
    )
    reason = "the line is truncated" if truncated else f"{error.msg.removesuffix(' at')} at column {error.colno}"
    return DataError(f"is not valid JSON: {reason}.", "Correct or delete this line.")


def as_row(value: Any) -> Row | DataError:
    """The value if it is an object, else an error."""
    if isinstance(value, dict):
        return value
    return DataError(f"is {kind_of(value)}, not an object.", "Write each row as one JSON object.")


def read_json(path: Path) -> Iterator[Row | DataError]:
    """Yields the objects of one JSON list, or of the list inside an object such as {"data": [...]}.

    It is read in pieces: memory does not grow with the file.

    Raises:
        DataError: the file contains no list of rows, several, or is truncated.
    """
    with open_text(path) as stream:
        pieces = _Pieces(iter(lambda: stream.read(_CHUNK), ""))
        if pieces.next_mark() == "{":
            outer = "object"
            for record in _inside_object(pieces):
                yield from _questions(record)
        else:
            outer = "list"
            yield from _list(pieces)
        if pieces.next_mark():
            raise pieces.broken(f"there is more text after the end of the {outer}")


def _list(pieces: "_Pieces") -> Iterator[Row | DataError]:
    pieces.skip(1)
    if pieces.next_mark() == "]":
        pieces.skip(1)
    else:
        yield from _elements(pieces)


def _inside_object(pieces: "_Pieces") -> Iterator[Row | DataError]:
    """The rows of the one list of rows in an object; other values are passed over."""
    found = ""
    while pieces.next_mark() != "}":
        pieces.skip(1)  # the brace or a comma
        if pieces.next_mark() != '"':
            raise pieces.broken("a key is missing")
        key = pieces.value()
        if pieces.next_mark() != ":":
            raise pieces.broken("a colon is missing")
        pieces.skip(1)
        if pieces.next_mark() != "[":
            pieces.value()
            continue
        pieces.skip(1)
        mark = pieces.next_mark()
        if mark == "]":
            pieces.skip(1)
        elif mark != "{":  # a list of something else than rows
            deque(_elements(pieces), maxlen=0)
        elif found:
            message = f"has several lists: {found} and {key}."
            raise DataError(message, "Save each list as its own file.")
        else:
            found = key
            pieces.count_from_here()
            yield from (_not_a_turn(record) for record in _elements(pieces))
    pieces.skip(1)
    if not found:
        raise DataError("is one object, not a list of rows.", "Put the rows into a list: [{...}, {...}].")


def _not_a_turn(record: Row | DataError) -> Row | DataError:
    """The record, unless it is a turn of a conversation: then the whole object is one row."""
    if isinstance(record, dict) and any(turn <= record.keys() for turn in _TURNS):
        raise DataError("is one row, not a list of rows.", "Put the rows into a list: [{...}, {...}].")
    return record


def _questions(record: Row | DataError) -> Iterator[Row | DataError]:
    """A record of SQuAD's structure (paragraphs, each with its context and questions) as one row a question; others as they are."""
    paragraphs = record.get("paragraphs") if isinstance(record, dict) else None
    if not isinstance(paragraphs, list) or not all(isinstance(one, dict) and "qas" in one for one in paragraphs):
        yield record
        return
    for paragraph in paragraphs:
        for question in paragraph["qas"] if isinstance(paragraph["qas"], list) else ():
            yield {"context": paragraph.get("context"), **question} if isinstance(question, dict) else as_row(question)


def _elements(pieces: "_Pieces") -> Iterator[Row | DataError]:
    while True:
        value = pieces.value()
        yield pieces.decoder.fault or as_row(value)
        mark = pieces.next_mark()
        if mark not in ("]", ","):
            raise pieces.broken("a comma is missing between two rows" if mark else "the file is truncated")
        pieces.skip(1)
        if mark == "]":
            return
        if pieces.next_mark() == "]":
            raise pieces.broken("there is a comma before the end of the list")


class _Pieces:
    """A long JSON text; only the part around the current value is in memory."""

    def __init__(self, chunks: Iterator[str]) -> None:
        self.decoder = StrictDecoder()
        self._chunks = chunks
        self._text, self._at, self._whole = "", 0, False
        self._lines, self._column, self._rows = 1, 0, 0  # of the text already dropped

    def next_mark(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self, count: int) -> None:
        self._at += count

    def count_from_here(self) -> None:
        """The next value is row 1 in errors."""
        self._rows = 0

    def value(self) -> Any:
        """The value at the current position. Raises DataError if it is not valid, too long or nested too deeply."""
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
                    raise self.broken("the file is truncated" if unfinished else error.msg) from None

    def broken(self, reason: str) -> DataError:
        """The error at the current position, with its line and column in the file."""
        before = self._text[: self._at]
        column = self._at - before.rfind("\n") + (0 if "\n" in before else self._column)
        line = self._lines + before.count("\n")
        fix = "Correct the file there."
        return DataError(f"is not valid JSON: {reason} (line {line}, column {column}).", fix, line=self._rows)

    def _located(self, error: DataError) -> DataError:
        return DataError(error.message, error.fix, line=self._rows)

    def _more(self) -> bool:
        """Drops the text before the current position and reads more, at least as much as remains; False at the end."""
        gone, rest = self._text[: self._at], self._text[self._at :]
        self._lines += gone.count("\n")
        self._column = len(gone) - gone.rfind("\n") - 1 + (0 if "\n" in gone else self._column)
        parts, wanted = [rest], max(_CHUNK, len(rest))
        while wanted > 0 and (chunk := next(self._chunks, "")):
            self._check(chunk, parts)
            parts.append(chunk)
            wanted -= len(chunk)
        self._text, self._at = "".join(parts), 0
        return len(self._text) > len(rest)

    def _check(self, chunk: str, before: list[str]) -> None:
        fault = line_fault(chunk)
        if fault is not None:
            faults = [line_fault(line) for line in chunk.split("\n")]
            place = next(index for index, error in enumerate(faults) if error)
            line = self._lines + sum(part.count("\n") for part in before) + place
            first = faults[place] or fault
            raise DataError(f"{first.message[:-1]} (line {line} of the file).", first.fix)
