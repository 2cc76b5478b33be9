"""Makes the token store of a data set: `python -m training.tokens.make_store FILE --model M [--columns T] --into FOLDER`.

The tokenizer's threads encode one chunk while the previous one is written, so memory depends on the chunk and not on the file.
Statistics (lengths, duplicates, scripts) go into the store's facts.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from training.chat.rendering_settings import DEFAULT, ChatSettings, with_row_weight
from training.config.task import StoredText
from training.data.example import Example, Row
from training.data.rows import read_numbered
from training.errors import DataError, UserError
from training.files import sha256, write_whole
from training.jail.confinement import confine
from training.model_info.config_json import local_folder
from training.tokens.coverage import GapCounts
from training.tokens.parts import PartRenderer
from training.tokens.store import (
    PROGRESS,
    TokenStore,
    in_use,
    is_whole,
    locked,
    making_folder,
    open_store,
    store_key,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from training.tokens.encoding import Encoded
    from training.tokens.rendered import Rendered

FAILURE = "failure.json"
_CHUNK_ROWS = 1000
_CHUNK_CHARACTERS = 2_000_000
_CHUNKS_AHEAD = 2
_SECONDS_BETWEEN_REPORTS = 0.5

Progress = Callable[[int], None]


def make_store(
    source: Path,
    folder: Path,
    tokenizer: "PreTrainedTokenizerBase",
    columns: str | None,
    progress: Progress,
    part: StoredText = StoredText.WHOLE,
    chat: ChatSettings = DEFAULT,
) -> None:
    """Tokenizes the rows of `source` into the store `folder`. The caller holds the store's lock. Raises DataError if a row cannot
    be read or rendered, or no row can train."""
    from training.tokens.store_writer import StoreWriter

    temporary = making_folder(folder)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=0o700, parents=True)
    try:
        gaps = GapCounts()
        rows = read_numbered(source, columns, unwanted=part is StoredText.CHOSEN)
        rendered = _rendered(rows, PartRenderer(tokenizer, part, chat), chat, gaps)
        with StoreWriter(temporary, tokenizer, gaps, weighted=bool(chat.weight_field)) as writer:
            for chunk, encoded in _encoded(_chunks(rendered), tokenizer):
                writer.add(chunk, encoded)
                progress(writer.rows)
            if not writer.trainable:
                raise DataError("has no row with an answer.", "Fill in the answers.", file=source.name)
            writer.finish()
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    (temporary / PROGRESS).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)


def find_or_make(
    source: Path,
    root: Path,
    tokenizer: "PreTrainedTokenizerBase",
    model: str,
    revision: str | None,
    columns: str | None,
    progress: Callable[[int, int], None],
    part: StoredText = StoredText.WHOLE,
    chat: ChatSettings = DEFAULT,
) -> TokenStore:
    """The token store of `source` in `root`; makes it if needed, and waits if another process makes it.

    The store cannot be removed while this process lives.
    """
    folder = root / store_key(sha256(source), model, columns, revision, part, chat.key)
    written = FileProgress(making_folder(folder) / PROGRESS, 0)

    def report(done: int) -> None:
        written(done)
        progress(done, 0)

    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    in_use(folder)  # before the check: from now on no process can remove the store
    if not is_whole(folder):
        with locked(folder, waiting=lambda: progress(*read_progress(folder))):
            if not is_whole(folder):
                make_store(source, folder, tokenizer, columns, report, part, chat)
    return open_store(folder)


def read_progress(folder: Path) -> tuple[int, int]:
    """(rows done, all rows or 0) of the store `folder` while it is being made."""
    try:
        progress = json.loads((making_folder(folder) / PROGRESS).read_text(encoding="utf-8"))
        return int(progress["done"]), int(progress["total"])
    except (OSError, ValueError):
        return 0, 0


def _encoded(
    chunks: Iterable[list["Rendered | None"]], tokenizer: "PreTrainedTokenizerBase"
) -> Iterator[tuple[list["Rendered | None"], "Encoded"]]:
    from training.tokens.encoding import Encoder

    encoder = Encoder(tokenizer)
    with ThreadPoolExecutor(1) as pool:
        waiting: deque[tuple[list[Rendered | None], Future[Any]]] = deque()
        for chunk in chunks:
            waiting.append((chunk, pool.submit(encoder.encode, chunk)))
            if len(waiting) == _CHUNKS_AHEAD:
                first, encodings = waiting.popleft()
                yield first, encoder.collect(first, encodings.result())
        for first, encodings in waiting:
            yield first, encoder.collect(first, encodings.result())


def _chunks(rows: Iterable["Rendered | None"]) -> Iterator[list["Rendered | None"]]:
    chunk: list[Rendered | None] = []
    characters = 0
    for row in rows:
        chunk.append(row)
        characters += len(row.text) if row else 0
        if len(chunk) >= _CHUNK_ROWS or characters >= _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    if chunk:
        yield chunk


def _rendered(
    rows: Iterable[tuple[int, Row, Example | None]], renderer: PartRenderer, chat: ChatSettings, gaps: GapCounts
) -> Iterator["Rendered | None"]:
    for number, row, example in rows:
        if example is None:
            yield None
            continue
        try:
            weighted = with_row_weight(example, row, chat)
            rendered = renderer.render(weighted)
        except DataError as error:
            raise DataError(error.message, error.fix, line=number + 1, field=error.field) from None
        gaps.add(number + 1, renderer.missing(weighted, rendered))
        yield rendered


def main() -> None:
    """Makes the store, or writes FOLDER.failure.json. `--locked` is an inherited descriptor of the store's lock."""
    # Tokenizers do not need torch; its import takes three seconds and most of the memory limit.
    sys.modules["torch"] = None  # type: ignore[assignment]
    parser = argparse.ArgumentParser(description="Tokenize a data set into a store.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--revision")
    parser.add_argument("--columns")
    parser.add_argument("--into", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--name", help="the name to use in messages")
    parser.add_argument("--rows", type=int, default=0, help="number of rows, for the progress")
    parser.add_argument("--locked", type=int, metavar="DESCRIPTOR", help=argparse.SUPPRESS)
    options = parser.parse_args()
    signal.signal(signal.SIGXCPU, _out_of_time)
    with nullcontext() if options.locked else locked(options.into):
        if is_whole(options.into):
            return
        try:
            _make(options)
        except Exception as error:
            failure_file(options.into).write_text(json.dumps(_problem(error, options.name or options.file.name)))
            sys.exit(1)
        failure_file(options.into).unlink(missing_ok=True)


def _out_of_time(_number: int, _frame: FrameType | None) -> None:
    raise TimeoutError("it takes more CPU time than allowed")


def failure_file(folder: Path) -> Path:
    """The file with the reason why the store `folder` could not be made."""
    return folder.with_name(f"{folder.name}.{FAILURE}")


def _make(options: argparse.Namespace) -> None:
    read = [options.file, *_model_files(options.model, options.revision)]
    # From here on it reads what others have written: rows, a tokenizer, and a template, which is a program.
    confine("the program that tokenizes", read, writable=options.into.parent)
    from training.chat.tokenizer import load

    progress = FileProgress(making_folder(options.into) / PROGRESS, options.rows)
    make_store(options.file, options.into, load(options.model, options.revision), options.columns, progress)


def _model_files(model: str, revision: str | None) -> Iterator[Path]:
    """The folders with a model's tokenizer; a hub model's is downloaded by another process, which reads none of it."""
    if folder := local_folder(model):
        yield folder
        yield from {link.resolve().parent for link in (folder, *folder.iterdir()) if link.is_symlink()}
        return
    offline = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-m", "training.model_info.hub_files", model, *([revision] if revision else [])]
    for environment in (offline, os.environ):  # the hub is asked only if the files are not here
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        if done.returncode == 0:
            yield Path(os.fsdecode(done.stdout.splitlines()[-1])).parents[1]
            break
    os.environ["HF_HUB_OFFLINE"] = "1"  # the hub's client would wait for a network that is not there


class FileProgress:
    """Writes the number of tokenized rows to a file, at most twice a second."""

    def __init__(self, file: Path, total: int) -> None:
        self._file, self._total, self._written = file, total, 0.0

    def __call__(self, done: int) -> None:
        now = time.monotonic()
        if now - self._written >= _SECONDS_BETWEEN_REPORTS:
            self._written = now
            write_whole(self._file, json.dumps({"done": done, "total": self._total}))


def _problem(error: Exception, file: str) -> dict[str, Any]:
    place: dict[str, Any] = {"file": file, "line": None, "field": ""}
    match error:
        case DataError():
            place |= {"line": error.line, "field": error.field}
            return {**place, "message": error.message, "fix": error.fix}
        case UserError():
            problem = error.problem
            return {"file": "", "line": None, "field": problem.field, "message": problem.sentence, "fix": problem.fix}
        case MemoryError():
            message, fix = "needs more memory to tokenize than the limit.", "Shorten its longest rows."
        case TimeoutError():
            message, fix = f"cannot be tokenized: {error}.", "Check the model's chat template for an endless loop."
        case OSError():
            message, fix = f"cannot be tokenized: {error.strerror or error}.", "Free some space in the data folder."
        case _:
            message, fix = f"cannot be tokenized ({type(error).__name__}: {error}).", "Try another model's tokenizer."
    return {**place, "message": message, "fix": fix}


if __name__ == "__main__":
    os.environ |= {"TOKENIZERS_PARALLELISM": "true", "TRANSFORMERS_VERBOSITY": "error"}
    main()
