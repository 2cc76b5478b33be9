"""Reads the small files that a configuration names, from its folder upwards."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

_PARTS = ("", "..", "../..", "../../..")
_LARGEST = 2**20
"""Bytes; configurations are a few thousand."""


@dataclass(frozen=True)
class Nearby:
    """The folder of a file, from which names are looked up, and texts that a script writes. Without a folder, no file is read."""

    folder: Path | None = None
    written: Mapping[str, str] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """The text of a named file; None if it is not here, too large or no text."""
        if name in self.written:
            return self.written[name]
        for path in [self.folder / part / name for part in _PARTS] if self.folder else []:
            try:
                if path.is_file() and path.stat().st_size <= _LARGEST:
                    return path.read_text(encoding="utf-8")
            except (OSError, ValueError):  # a name that no file can have; not text
                continue
        return None
