"""Files and folders that are written whole, by several writers at once, and what killed writers leave."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from trained import data, model
from trainer_process import train_here

from training import files
from training.run_folder import checkpoints
from training.run_folder.paths import MANIFEST_FILE, checkpoint_dir
from training.units import signal_name

# Begins a file of "half", prints a line, and waits.
WRITER = """
import sys
from pathlib import Path
from training.files import whole_file
with whole_file(Path(sys.argv[1])) as part:
    part.write_text("half")
    print(flush=True)
    sys.stdin.readline()
"""


def test_several_write_the_same_file_at_once(tmp_path: Path) -> None:
    target = tmp_path / "race.txt"

    def write(letter: str) -> None:
        for _ in range(100):
            files.write_whole(target, letter * 2000)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(write, "abc"))
    assert target.read_text() in ("a" * 2000, "b" * 2000, "c" * 2000)
    assert list(tmp_path.iterdir()) == [target]


def test_several_make_the_same_folder_at_once_and_one_is_there(tmp_path: Path) -> None:
    target = tmp_path / "merged"
    with files.whole_folder(target) as first, files.whole_folder(target) as second:
        assert first != second
        for folder in (first, second):
            folder.mkdir()
    assert list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("killed", [True, False])
def test_the_next_writer_deletes_what_a_killed_one_left_and_nothing_of_a_living_one(
    tmp_path: Path, killed: bool
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", WRITER, str(first)], stdin=pipe, stdout=pipe) as writer:
        assert writer.stdout and writer.stdout.readline() and writer.stdin
        if killed:
            writer.kill()
            writer.wait()
        assert len(list(tmp_path.iterdir())) == 1
        files.write_whole(second, "whole")
        if not killed:
            writer.communicate(b"\n")
    assert sorted(tmp_path.iterdir()) == ([second] if killed else [first, second])
    assert killed or first.read_text() == "half"


def test_a_folder_whose_writer_was_killed_before_it_had_a_lock_is_deleted(tmp_path: Path) -> None:
    (tmp_path / ".first.0123abcd.part").mkdir()
    own = tmp_path / ".notes.part"
    own.mkdir()
    (own / "text").touch()
    files.write_whole(tmp_path / "second", "whole")
    assert sorted(tmp_path.iterdir()) == [own, tmp_path / "second"]


def test_a_folder_that_has_no_lock_yet_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = os.mkdir

    def make(*arguments: Any, **options: Any) -> None:
        made(*arguments, **options)
        files.remove_dead_scratch(tmp_path)

    monkeypatch.setattr(os, "mkdir", make)
    with files.whole_file(tmp_path / "first") as part:
        part.write_text("whole")
    assert (tmp_path / "first").read_text() == "whole" and len(list(tmp_path.iterdir())) == 1


def test_a_failure_leaves_the_former_file_and_nothing_beside_it(tmp_path: Path) -> None:
    target = tmp_path / "config.json"
    files.write_whole(target, "former")
    with pytest.raises(UnicodeEncodeError):
        files.write_whole(target, "\ud800")
    assert target.read_text() == "former" and list(tmp_path.iterdir()) == [target]
    assert target.stat().st_mode & 0o777 == 0o600


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[Path]]:
    """Returns what has been synced so far."""
    paths: list[Path] = []
    fsync = os.fsync

    def record(descriptor: int) -> None:
        fsync(descriptor)
        paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())

    monkeypatch.setattr(os, "fsync", record)
    return lambda: paths


def test_every_file_and_folder_of_a_checkpoint_is_on_the_disk_before_it_counts(
    tmp_path: Path, synced: Callable[[], list[Path]]
) -> None:
    checkpoint = checkpoint_dir(tmp_path, 4)
    shards = checkpoint / "global_step4" / "shards"
    shards.mkdir(parents=True)
    (shards / "0.pt").write_bytes(b"0")
    checkpoints.seal(checkpoint)
    manifest = synced().index(checkpoint / f".{MANIFEST_FILE}.tmp")
    assert {shards / "0.pt", shards, shards.parent} <= set(synced()[:manifest])
    assert {checkpoint, checkpoint.parent} <= set(synced()[manifest:])


@pytest.mark.train
@pytest.mark.filterwarnings("ignore")
def test_every_file_of_a_result_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: Callable[[], list[Path]]
) -> None:
    rename = Path.rename
    before: list[Path] = []

    def renamed(path: Path, target: Path) -> Path:
        if path.name == "adapter.partial":
            before.extend(synced())
            assert {*path.rglob("*"), path} <= {*before} and list(path.glob("*.safetensors"))
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", renamed)
    run = train_here(tmp_path / "run", model("plain_llama"), data("counting"), max_steps=1, eval_split=0, eval_steps=0)
    assert before and run.run_dir in synced()[len(before) :]


def test_a_signal_without_a_name_has_its_number() -> None:
    assert [signal_name(number) for number in (signal.SIGKILL, 40)] == ["SIGKILL", "signal 40"]
