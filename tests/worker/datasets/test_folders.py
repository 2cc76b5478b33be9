"""Files of this machine can be chosen only from allowed folders."""

import os

import pytest

from training.errors import DataError
from worker.datasets import folders
from worker.settings import get_settings


@pytest.fixture
def allow(home, monkeypatch):
    def folders_of(*paths):
        monkeypatch.setenv("LATHE_DATA_FOLDERS", os.pathsep.join(map(str, paths)))
        get_settings.cache_clear()

    return folders_of


@pytest.fixture
def shelf(tmp_path):
    (tmp_path / "shelf" / "deep").mkdir(parents=True)
    for name in ("a.jsonl", "deep/b.csv.gz", "notes.doc", ".hidden.json"):
        (tmp_path / "shelf" / name).write_text("x")
    return tmp_path / "shelf"


def refused(name):
    with pytest.raises(DataError) as caught:
        folders.resolve(name)
    return caught.value.message


def test_no_files_are_listed_without_an_allowed_folder(home, shelf):
    assert folders.listing() == []
    assert refused(str(shelf / "a.jsonl")) == "is not in an allowed folder."


def test_data_files_are_listed_and_each_name_resolves_to_its_file(allow, shelf):
    allow(shelf)
    assert folders.listing() == ["shelf/a.jsonl", "shelf/deep/b.csv.gz"]
    assert [folders.resolve(name) for name in folders.listing()] == [shelf / "a.jsonl", shelf / "deep" / "b.csv.gz"]


def test_folders_with_the_same_name_are_distinguished(allow, shelf, tmp_path):
    other = tmp_path / "other" / "shelf"
    other.mkdir(parents=True)
    (other / "c.json").write_text("x")
    allow(shelf, other)
    assert folders.resolve(folders.listing()[-1]) == other / "c.json"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shelf/../secret.json", "is not in an allowed folder."),
        ("shelf/link.json", "is not in an allowed folder."),
        ("shelf/linked/secret.json", "is not in an allowed folder."),
        ("/etc/passwd", "is not in an allowed folder."),
        ("other/a.jsonl", "is not in an allowed folder."),
        ("shelf/none.json", "does not exist."),
        ("shelf/loop.json", "does not exist."),
        ("shelf/a\0b.json", "does not exist."),
        ("shelf/deep", "is not a file."),
    ],
)
def test_paths_outside_the_folder_are_refused(allow, shelf, tmp_path, name, message):
    (tmp_path / "secret.json").write_text("x")
    (shelf / "link.json").symlink_to(tmp_path / "secret.json")
    (shelf / "linked").symlink_to(tmp_path)
    (shelf / "loop.json").symlink_to(shelf / "loop.json")
    allow(shelf)
    assert refused(name) == message
    assert not any("link" in listed or "secret" in listed for listed in folders.listing())
