"""Landlock (Linux 5.13 and later): a process gives up all files but those that it names, and may only read these."""

import ctypes
import os
import struct
from collections.abc import Iterable
from pathlib import Path

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # on every architecture
_VERSION, _BENEATH = 1, 1  # linux/landlock.h
_READ_FILE, _READ_DIR = 1 << 2, 1 << 3
_WRITING = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8 | 1 << 13 | 1 << 14
"""To write, remove, make and move files and folders, and to shorten files; no devices, pipes, sockets and links."""
_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}  # to files, by the version of the interface; 16 in later ones
_TCP = 0b11  # bind, connect
_SCOPES = 0b11  # abstract sockets and signals of processes outside


def version(library: ctypes.CDLL) -> int:
    """The version of the kernel's interface; 0 without Landlock."""
    return max(0, int(library.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION))))


def restrict(library: ctypes.CDLL, readable: Iterable[Path], writable: Path | None = None) -> int:
    """Gives up all files but those below `readable`, writing but below `writable`, TCP, and signals to others, as far as the kernel
    knows them.

    Returns the version of its interface; 0 if the process is not restricted. Needs "no new privileges".
    """
    known = version(library)
    if not known or (writable and known < 2):  # the first one lets no file be moved between folders
        return 0
    asked = [(1 << _RIGHTS.get(known, 16)) - 1, *([_TCP] if known >= 4 else []), *([_SCOPES] if known >= 6 else [])]
    attributes = struct.pack(f"={len(asked)}Q", *asked)
    rules = library.syscall(_CREATE, attributes, ctypes.c_size_t(len(attributes)), ctypes.c_uint32(0))
    if rules < 0:
        return 0
    try:
        for path in readable:
            _allow(library, rules, path)
        if writable:
            _allow(library, rules, writable, _WRITING & asked[0])
        return 0 if library.syscall(_RESTRICT, ctypes.c_int(rules), ctypes.c_uint32(0)) else known
    finally:
        os.close(rules)


def _allow(library: ctypes.CDLL, rules: int, path: Path, more: int = 0) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it is not there
    try:
        rights = _READ_FILE | _READ_DIR if path.is_dir() else _READ_FILE
        rule = struct.pack("=Qi", rights | more, place)
        library.syscall(_ADD, ctypes.c_int(rules), ctypes.c_int(_BENEATH), rule, ctypes.c_uint32(0))
    finally:
        os.close(place)
