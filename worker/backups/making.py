"""Makes a backup while the installation runs.

The database is copied first: what files have beyond it is read when their run goes on. Of each run the checkpoints come first,
and then the records, so that the records reach at least as far as the checkpoint from which a restored run goes on.
"""

import os
import shutil
import tarfile
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO

from sqlmodel import select

from training.files import scratch
from training.run_folder import checkpoints
from training.run_folder.paths import checkpoints_dir
from worker.backups import contents, database_copy
from worker.machine.sizes import entries, size_of
from worker.settings import get_settings
from worker.store import database, schema
from worker.store.tables import Run, Status

Progress = Callable[[int, int, str], object]
"""Takes the bytes that are written, the bytes that there are, and what is being written."""

_GROWING = {".jsonl", ".log"}


def make(target: IO[bytes], *, secrets: bool, progress: Progress) -> None:
    """Writes the installation to `target`; with `secrets` also the server's token.

    Raises:
        OSError: it cannot be written, or something cannot be read.
    """
    settings = get_settings()
    folders = [settings.data_dir / name for name in contents.FOLDERS]
    total = sum(size_of(folder).bytes for folder in folders)
    with scratch(settings.data_dir / "backup") as beside, tarfile.open(fileobj=target, mode="w|") as tar:
        writer = _Writer(tar, beside, lambda what: progress(tar.offset, total, what))
        writer.text(contents.FACTS, _facts(total).model_dump_json())
        database_copy.to_file(beside / contents.DATABASE, lambda table: progress(0, total, f"table {table}"))
        writer.tree(beside / contents.DATABASE, contents.DATABASE)
        with (
            database.read_everything() as session
        ):  # after the copy: the files of runs that ended meanwhile are complete
            running = set(session.exec(select(Run.id).where(Run.status == Status.RUNNING)))
        for path in filter(_is_kept, [path for folder in folders for path in entries(folder)]):
            if path.parent == settings.runs_dir and path.is_dir():
                writer.run(path, running=path.name in running)
            else:
                writer.tree(path, f"{path.parent.name}/{path.name}")
        if secrets and (settings.data_dir / contents.TOKEN).is_file():
            writer.tree(settings.data_dir / contents.TOKEN, contents.TOKEN)
        writer.text(contents.END, "")


def _facts(size: int) -> contents.Facts:
    tables, of_lathe = schema.revisions()[-1], version("lathe-workbench")
    return contents.Facts(bytes=size, tables=tables, version=of_lathe, made_at=time.time())


def _is_kept(path: Path) -> bool:
    """False for what a process is writing, and for locks."""
    return not path.name.startswith(".") and path.suffix != ".partial"


class _Writer:
    """Adds files to the archive. `beside` is an empty folder on the same disk."""

    def __init__(self, tar: tarfile.TarFile, beside: Path, tell: Callable[[str], object]) -> None:
        self._tar, self._beside, self._tell = tar, beside, tell

    def run(self, run_dir: Path, *, running: bool) -> None:
        """Adds a run's folder: complete checkpoints, then its other folders, and its files last; of a running one whole lines."""
        name, kept = f"runs/{run_dir.name}", checkpoints_dir(run_dir)
        for checkpoint in self._frozen_checkpoints(run_dir):
            self.tree(checkpoint, f"{name}/{kept.name}/{checkpoint.name}")
        paths = [path for path in entries(run_dir) if _is_kept(path) and path != kept]
        for path in sorted(paths, key=Path.is_file):
            if path.is_dir():
                self.tree(self._frozen(path), f"{name}/{path.name}")
            else:
                self.tree(path, f"{name}/{path.name}", growing=running and path.suffix in _GROWING)

    def tree(self, path: Path, name: str, *, growing: bool = False) -> None:
        """Adds a file, or a folder with all that is in it, as `name`. What disappears meanwhile is left out, and the last
        line of a growing file if it is incomplete."""
        self._tell(name)
        if path.is_symlink():
            return
        if path.is_dir():
            self._tar.add(path, name, recursive=False)
            for inner in entries(path):
                self.tree(inner, f"{name}/{inner.name}")
        elif path.is_file():
            self._file(path, name, growing=growing)

    def text(self, name: str, content: str) -> None:
        """Adds a small file."""
        file = self._beside / "text"
        file.write_text(content, encoding="utf-8")
        self.tree(file, name)

    def _file(self, path: Path, name: str, *, growing: bool) -> None:
        try:
            stream = path.open("rb")
        except FileNotFoundError:
            return
        with stream:
            found = os.fstat(stream.fileno())
            info = tarfile.TarInfo(name)  # of a regular file, however many links it has
            info.mode, info.mtime = found.st_mode & 0o777, found.st_mtime
            info.size = _whole_lines(path, found.st_size) if growing else found.st_size
            self._tar.addfile(info, stream)

    def _frozen_checkpoints(self, run_dir: Path) -> Iterator[Path]:
        """The complete checkpoints as they are now, although the run deletes older ones while they are copied."""
        frozen = {path.name: self._frozen(path) for path in checkpoints.sealed(run_dir)}
        while frozen and not any(checkpoints.fault(path) == "" for path in frozen.values()):
            missing = [path for path in checkpoints.sealed(run_dir) if path.name not in frozen]
            if not missing:
                break
            frozen |= {path.name: self._frozen(path) for path in missing}
        yield from frozen.values()

    def _frozen(self, folder: Path) -> Path:
        """The folder's files under links that stay when they are deleted; the folder itself on a disk without links."""
        target = Path(f"{self._beside}/{len(entries(self._beside))}") / folder.name
        try:
            shutil.copytree(folder, target, copy_function=os.link, symlinks=True)
        except OSError:  # some disappeared meanwhile, or there are no links
            return target if any(path.is_file() for path in target.rglob("*")) else folder
        return target


def _whole_lines(path: Path, size: int) -> int:
    """The bytes of the lines that are complete among the first `size`."""
    with path.open("rb") as stream:
        while size > 0:
            first = max(size - 65536, 0)
            stream.seek(first)
            found = stream.read(size - first).rfind(b"\n")
            if found >= 0:
                return first + found + 1
            size = first
    return 0
