"""Fuzzes a reader of files of strangers: `fuzz_readers.py READER SECONDS FOLDER` with coverage by atheris, from seeds in FOLDER.

It ends with an error at the first input for which the reader raises what it does not document, or that takes too long. The input
is then in the folder, as crash-* or timeout-*.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from training.errors import UserError

SECONDS_FOR_ONE, MEMORY_MIB, LONGEST = 20, 4000, 20_000
PACKAGES = [
    "training.config",
    "training.data",
    "training.deepspeed_file",
    "training.foreign",
    "worker.diagnosis",
    "worker.runs",
]


def archive(content: bytes) -> None:
    """An archive of a run, imported into the database and deleted again."""
    from worker.archives.restore import restore
    from worker.store import database, runs

    path = _file(content, "run.zip")
    with suppress(UserError):
        run = restore(path)
        with database.write() as session:
            runs.delete(session=session, run_id=run.id)


def configuration(content: bytes) -> None:
    """Settings of a run as YAML."""
    from training.config.yaml_file import read_config

    with suppress(UserError):
        read_config(_file(content, "run.yaml"))


def foreign(content: bytes) -> None:
    """A configuration of another program: YAML, JSON or a shell command."""
    from training.foreign.translate import import_text

    with suppress(UserError):
        json.dumps(import_text(content.decode(errors="replace"), None, "body").document())


def deepspeed(content: bytes) -> None:
    """A DeepSpeed JSON, which may have comments and missing commas."""
    from training.deepspeed_file.check import canonical

    with suppress(ValueError):
        canonical(content.decode(errors="replace"))


def log(content: bytes) -> None:
    """A log of any training program. Its diagnosis refuses nothing."""
    from worker.diagnosis.diagnosis import diagnose

    json.dumps(diagnose(content.decode(errors="replace")).document())


def rows(content: bytes) -> None:
    """A text file with rows, whose name's ending is its first line. Its problems are in the report."""
    from training.data.inspection import inspect

    ending, _, body = content.partition(b"\n")
    if body.startswith(b"PAR1"):
        return  # Arrow's reader may crash: its process is limited
    name = f"rows.{ending[:12].decode('ascii', 'replace')}"
    inspect(_file(body, "rows"), name)


def bundle(content: bytes) -> None:
    """A zip archive of data files, unpacked."""
    from worker.datasets import bundles
    from worker.disk_quota import measured

    path = _file(content, "rows.zip")
    with suppress(UserError), bundles.as_file(path, path.name, measured("local")):
        pass


READERS: dict[str, Callable[[bytes], None]] = {
    reader.__name__: reader for reader in (archive, configuration, foreign, deepspeed, log, rows, bundle)
}


def mutations(seeds: list[bytes], count: int, seed: int = 0) -> Iterator[bytes]:
    """Seeds with a few bytes changed, removed, repeated or exchanged with another seed's; always the same ones."""
    chance = random.Random(seed)
    for _ in range(count):
        content = bytearray(chance.choice(seeds)[:LONGEST])
        for _ in range(chance.randint(1, 4)):
            begin = chance.randrange(len(content) + 1)
            end = min(len(content), begin + chance.choice((1, 1, 2, 8, 100)))
            other = chance.choice(seeds)
            place = chance.randrange(len(other) + 1)
            words = (
                b"\xff",
                b"\0",
                b"[",
                b"{",
                b'"',
                b"\n",
                b"-1",
                b"1e999",
                b"NaN",
                b"null",
                b"\xed\xa0\x80",
                other[place : place + 100],
            )
            content[begin:end] = chance.choice((b"", bytes(content[begin:end]) * 3, chance.choice(words)))
        yield bytes(content)


def _file(content: bytes, name: str) -> Path:
    path = Path(os.environ["LATHE_DATA_DIR"]) / name
    path.write_bytes(content)
    return path


def main(reader: str, seconds: str, folder: str) -> None:
    import atheris

    with atheris.instrument_imports(include=PACKAGES):
        READERS[reader](b"")  # imports what it needs
    limits = (
        f"-max_total_time={seconds}",
        f"-timeout={SECONDS_FOR_ONE}",
        f"-rss_limit_mb={MEMORY_MIB}",
        f"-max_len={LONGEST}",
    )
    atheris.Setup([sys.argv[0], *limits, f"-artifact_prefix={folder}/", folder], READERS[reader])
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
