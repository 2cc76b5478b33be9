"""Counting a file's tokens for the command line: in a process with limits, with a line that says how far it is."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from app import text
from training.duplicates import shared_rows
from training.failure import DataError
from training.lengths import trains
from training.token_store import TokenStore, open_store
from training.tokenizing import failure_file, read_progress
from worker import measuring
from worker.checking import environment
from worker.settings import ROOT

_EXAMPLES = 10
_LOOK_SECONDS = 0.2
_HUB_VARIABLES = ("HF_HOME", "HF_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN")


def tokenized(file: Path, folder: Path, model: str, columns: str | None, rows: int) -> TokenStore:
    """The file's tokens, in `folder`.

    Raises:
        DataError: they cannot be counted.
    """
    size = file.stat().st_size
    seconds = measuring.SECONDS + size // measuring.BYTES_PER_SECOND
    written = measuring.SPARE_BYTES + 4 * measuring.STORE_FACTOR * size
    limits = [str(number) for number in (measuring.MEMORY_BYTES, seconds, written)]
    given = ["--model", _found(model), "--into", str(folder), "--rows", str(rows), "--name", file.name]
    given += ["--columns", columns] if columns else []
    command = [
        sys.executable,
        "-m",
        "worker.limited",
        "--writing",
        *limits,
        measuring.TOKENIZER,
        str(file.absolute()),
        *given,
    ]
    kept = {name: os.environ[name] for name in _HUB_VARIABLES if name in os.environ}
    env = environment() | kept | {"TOKENIZERS_PARALLELISM": "true", "TRANSFORMERS_VERBOSITY": "error"}
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, cwd=ROOT
    ) as child:
        complaint = _watched(child, folder, _Line(file.name, rows))
    if child.returncode:
        raise _failure(folder, file.name, complaint)
    return open_store(folder)


def _watched(child: "subprocess.Popen[bytes]", folder: Path, line: "_Line") -> str:
    """Shows how far the process is until it ends; what it printed on stderr."""
    try:
        while True:
            try:
                return child.communicate(timeout=_LOOK_SECONDS)[1].decode(errors="replace")
            except subprocess.TimeoutExpired:
                line.show(read_progress(folder)[0])
    except BaseException:
        child.kill()
        raise
    finally:
        line.close()


def _failure(folder: Path, name: str, complaint: str) -> DataError:
    try:
        told = json.loads(failure_file(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = (complaint.strip().splitlines() or ["it was ended, mostly for want of memory"])[-1]
        return DataError(f"cannot be tokenized ({last}).", "Shorten its longest rows, or try again.", file=name)
    return DataError(told["message"], told["fix"], file=told["file"], line=told["line"], field=told["field"])


def first_untrained(store: TokenStore, limit: int) -> int | None:
    """The first row, from 1, that has tokens and none within the limit that carries loss."""
    rows = np.flatnonzero((store.lengths > 0) & ~trains(store.first_trained, limit))
    return int(rows[0]) + 1 if len(rows) else None


def leaked(train: TokenStore, held_out: TokenStore) -> dict[str, Any]:
    """How many rows of the second are in the first too, and the first few pairs, from 1."""
    first, rows = shared_rows(train.hashes, held_out.hashes)
    pairs = [[int(row) + 1, int(same) + 1] for row, same in zip(rows[:_EXAMPLES], first[:_EXAMPLES], strict=True)]
    return {"leaked_rows": len(rows), "leaked_examples": pairs}


def _found(model: str) -> str:
    """The model's folder: from here, or from the program's own (static/starter); else a hub id."""
    return next((str(base / model) for base in (Path.cwd(), ROOT) if (base / model).is_dir()), model)


class _Line:
    """A line on the terminal that is written over; elsewhere nothing is printed but the end."""

    def __init__(self, name: str, rows: int) -> None:
        self._name, self._rows, self._live = name, rows, sys.stderr.isatty()

    def show(self, done: int) -> None:
        if self._live:
            share = done / self._rows if self._rows else 0.0
            sys.stderr.write(f"\r{self._name}: {text.bar(share, 24)} {done:,} of {text.plural(self._rows, 'row')}")
            sys.stderr.flush()

    def close(self) -> None:
        if self._live:
            sys.stderr.write("\r\033[K")
        else:
            sys.stderr.write(f"{self._name}: {text.plural(self._rows, 'row')} read.\n")
        sys.stderr.flush()
