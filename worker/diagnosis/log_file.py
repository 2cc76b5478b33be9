"""Reads the parts of a log that a diagnosis needs: its start, its end, and the first traceback between them."""

import codecs
from collections import deque
from dataclasses import dataclass
from typing import BinaryIO

CHUNK = 2**20
HEAD_CHUNKS, TAIL_CHUNKS = 1, 3
_MARKS = (b"Traceback (most recent call last)", b"OutOfMemoryError")


@dataclass(frozen=True)
class Excerpt:
    """A part of a log, with the number of its first line, from 1."""

    first_line: int
    text: str


def read_log(stream: BinaryIO) -> list[Excerpt]:
    """Returns excerpts of a log of any size and content, about 6 MiB at most.

    Raises:
        OSError: the stream cannot be read.
    """
    head: list[bytes] = []
    between: list[tuple[int, bytes]] = []
    tail: deque[tuple[int, bytes]] = deque()
    line = 1
    while chunk := stream.read(CHUNK):
        if len(head) < HEAD_CHUNKS:
            head.append(chunk)
        else:
            tail.append((line, chunk))
            if len(tail) > TAIL_CHUNKS:
                _pass(tail.popleft(), between)
        line += chunk.count(b"\n")
    by_powershell = bool(head) and head[0].startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    encoding = "utf-16" if by_powershell else "utf-8"
    parts = _joined([(1, b"".join(head)), *between, *tail])
    return [Excerpt(number, part.decode(encoding, "replace")) for number, part in parts]


def _pass(part: tuple[int, bytes], between: list[tuple[int, bytes]]) -> None:
    """Keeps the chunk in which the first traceback begins, and the next one."""
    if len(between) == 1 or (not between and any(mark in part[1] for mark in _MARKS)):
        between.append(part)


def _joined(parts: list[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    """Joins parts that follow each other."""
    joined: list[tuple[int, bytes]] = []
    for number, part in parts:
        if joined and joined[-1][0] + joined[-1][1].count(b"\n") == number:
            joined[-1] = (joined[-1][0], joined[-1][1] + part)
        else:
            joined.append((number, part))
    return joined
