"""Opens ZIP files that users send: neither their list of files nor their compression takes much memory."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile

from training.files import open_regular

MOST_LIST_BYTES = 4 * 2**20
"""Of the list of files, which takes ten times as much memory: an entry has 46 bytes and its name."""


class _Listing(io.BufferedReader):
    """A file of which, while its list is read, no more is read at once than a list may have."""

    is_listing = True

    def read(self, size: int | None = -1, /) -> bytes:
        if self.is_listing and size is not None and size > MOST_LIST_BYTES:
            raise BadZipFile(f"its list of files has more than {MOST_LIST_BYTES:,} bytes")
        return super().read(size)


@contextmanager
def opened(path: Path) -> Iterator[ZipFile]:
    """A ZIP file whose members are stored or compressed with Deflate: other methods need up to gigabytes.

    Raises:
        OSError: it cannot be opened.
        BadZipFile: it is no ZIP file, its list of files is too long, or a member is compressed with another method.
    """
    with open_regular(path) as plain, _Listing(io.FileIO(os.dup(plain.fileno()))) as stream:  # noqa: SIM117
        with ZipFile(stream) as source:
            stream.is_listing = False
            if any(member.compress_type not in (ZIP_STORED, ZIP_DEFLATED) for member in source.infolist()):
                raise BadZipFile("it is compressed with another method than Deflate")
            yield source
