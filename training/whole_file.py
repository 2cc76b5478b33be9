"""Writes files that nobody sees half written."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Writes the file whole or not at all: a failure leaves the former file, and nothing beside it. Only its user can read it.

    Raises:
        OSError: it cannot be written, for example on a full disk.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        part.unlink(missing_ok=True)
        part.touch(mode=0o600)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
