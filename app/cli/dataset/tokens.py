"""Tokenizing a file for the command line, in a process with limits, with a progress line."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

from app.cli.options import Progress
from app.format import numbers
from training.errors import DataError
from training.tokens.duplicates import shared_rows
from training.tokens.groups import near_groups
from training.tokens.make_store import failure_file, read_progress
from training.tokens.run_rows import leaked_rows
from training.tokens.store import TokenStore, joined, open_store
from worker.datasets import token_stores
from worker.machine import programs
from worker.settings import ROOT

_EXAMPLES = 10
_POLL_SECONDS = 0.2


def tokenized(file: Path, folder: Path, model: str, columns: str | None, rows: int) -> TokenStore:
    """The file's token store, written into `folder`."""
    arguments, limits = token_stores.program(file, folder, _model_folder(model), columns, rows=rows, name=file.name)
    with programs.running_limited(
        programs.MAKE_STORE,
        arguments,
        limits,
        env=token_stores.TOKENIZER_VARIABLES | _token(),
        stdout=subprocess.DEVNULL,
    ) as child:
        stderr = _monitored(child, folder, file.name, rows)
    if child.returncode:
        raise _failure(folder, file.name, stderr)
    return open_store(folder)


def _token() -> dict[str, str]:
    """The hub token of the user of the command line."""
    return {name: os.environ[name] for name in ("HF_TOKEN",) if name in os.environ}


def _monitored(child: "subprocess.Popen[bytes]", folder: Path, name: str, rows: int) -> str:
    """Shows the progress of the process until it ends; returns its stderr."""
    line, all_rows = Progress(name), numbers.plural(rows, "row", "rows")
    try:
        while True:
            try:
                return child.communicate(timeout=_POLL_SECONDS)[1].decode(errors="replace")
            except subprocess.TimeoutExpired:
                done = read_progress(folder)[0]
                line.show(done / rows if rows else 0.0, f"{done:,} of {all_rows}")
    finally:
        line.close(f"{all_rows} read.")


def _failure(folder: Path, name: str, stderr: str) -> DataError:
    try:
        failure = json.loads(failure_file(folder).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        last = (stderr.strip().splitlines() or ["the process was killed, probably out of memory"])[-1]
        return DataError(f"cannot be tokenized ({last}).", "Shorten its longest rows, or try again.", file=name)
    return DataError(**failure)


def leaked(train: TokenStore, held_out: TokenStore) -> dict[str, Any]:
    """The number of held-out rows that are also in `train`, and the first pairs (from 1); and of those that are near duplicates of
    rows in it."""
    near = near_groups(joined([train, held_out]))
    alike = leaked_rows(np.arange(train.rows), np.arange(train.rows, len(near)), near) & (held_out.lengths > 0)
    first, rows = shared_rows(train.hashes, held_out.hashes)
    pairs = [[int(row) + 1, int(same) + 1] for row, same in zip(rows[:_EXAMPLES], first[:_EXAMPLES], strict=True)]
    return {
        "leaked_rows": len(rows),
        "leaked_examples": pairs,
        "near_leaked_rows": int(alike.sum()),
        "near_leaked_examples": (np.flatnonzero(alike)[:_EXAMPLES] + 1).tolist(),
    }


def _model_folder(model: str) -> str:
    """The model's folder, relative to the current folder or to Lathe's own (static/starter); else the hub id."""
    return next((str(base / model) for base in (Path.cwd(), ROOT) if (base / model).is_dir()), model)
