"""Files of this machine are offered from allowed folders, and from nowhere else."""

import os

import pytest

from training.failure import DataError
from worker import folders
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


def test_nothing_is_offered_until_a_folder_is_allowed(home, shelf):
    assert folders.listing() == []
    assert refused(str(shelf / "a.jsonl")) == "is not in a folder that may be read."


def test_data_files_are_listed_and_each_name_leads_to_its_file(allow, shelf):
    allow(shelf)
    assert folders.listing() == ["shelf/a.jsonl", "shelf/deep/b.csv.gz"]
    assert [folders.resolve(name) for name in folders.listing()] == [shelf / "a.jsonl", shelf / "deep" / "b.csv.gz"]


def test_two_folders_of_one_name_are_told_apart(allow, shelf, tmp_path):
    other = tmp_path / "other" / "shelf"
    other.mkdir(parents=True)
    (other / "c.json").write_text("x")
    allow(shelf, other)
    assert folders.resolve(folders.listing()[-1]) == other / "c.json"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("shelf/../secret.json", "is not in a folder that may be read."),
        ("shelf/link.json", "is not in a folder that may be read."),
        ("shelf/linked/secret.json", "is not in a folder that may be read."),
        ("/etc/passwd", "is not in a folder that may be read."),
        ("other/a.jsonl", "is not in a folder that may be read."),
        ("shelf/none.json", "is not there."),
        ("shelf/loop.json", "is not there."),
        ("shelf/a\0b.json", "is not there."),
        ("shelf/deep", "is no file."),
    ],
)
def test_what_leads_out_of_the_folder_is_refused(allow, shelf, tmp_path, name, message):
    (tmp_path / "secret.json").write_text("x")
    (shelf / "link.json").symlink_to(tmp_path / "secret.json")
    (shelf / "linked").symlink_to(tmp_path)
    (shelf / "loop.json").symlink_to(shelf / "loop.json")
    allow(shelf)
    assert refused(name) == message
    assert not any("link" in listed or "secret" in listed for listed in folders.listing())
