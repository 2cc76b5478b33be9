"""Pages and searches of the rows of a stored data set."""

import json
import threading

import pytest

from app.documents import rows as rows_document
from training.errors import DataError
from worker.datasets import datasets, row_pages, row_search
from worker.store import database as db

LARGE = 50_000
PATIENCE = 86_400  # seconds; the guard of the suite ends what hangs


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    path = tmp_path_factory.mktemp("large") / "large.jsonl"
    with path.open("w") as stream:
        for n in range(1, LARGE + 1):
            stream.write(json.dumps({"prompt": f"question {n}", "completion": f"{'word ' * 5}answer {n}"}) + "\n")
    return path


def stored(tmp_path, text, name="rows.jsonl"):
    path = tmp_path / name
    path.write_text(text)
    return datasets.add_file(path=path, name=name)


def index_made(path):
    """Makes the index and waits for its thread."""
    row_pages.prepare(path)
    for thread in threading.enumerate():
        if thread.name == f"index of {path.name}":
            thread.join()
    return row_pages.index_of(path)


def test_any_row_of_a_large_file_is_read_with_an_index_beside_it_which_goes_with_the_data_set(home, large, monkeypatch):
    monkeypatch.setattr(row_pages, "_INDEXED_BYTES", 1)
    item = datasets.add_file(path=large, name="large.jsonl")
    path = datasets.path_of(item)
    before = row_pages.page(path, 49_990, 25)
    assert index_made(path).is_file()
    assert row_pages.page(path, 49_990, 25) == before
    assert [row["row"] for row in before] == list(range(49_990, LARGE + 1))
    assert before[-1]["values"]["prompt"] == f"question {LARGE}"
    with db.write() as session:
        datasets.delete(session=session, dataset_id=item.id)
    assert not row_pages.index_of(path).exists()


def test_a_search_streams_through_a_large_file_and_tells_its_progress(home, large):
    path = datasets.path_of(datasets.add_file(path=large, name="large.jsonl"))
    search = row_search.search(path, "QUESTION 1234")
    search.wait(100, PATIENCE)
    assert (search.state, search.more) == ("done", False)
    assert [row["row"] for row in search.matches] == [1_234, *range(12_340, 12_350)]
    assert search.read == LARGE
    assert row_search.search(path, "question 1234") is search


def test_a_stopped_search_keeps_its_rows_until_it_is_started_again(home, large):
    path = datasets.path_of(datasets.add_file(path=large, name="large.jsonl"))
    search = row_search.search(path, "question 47777")
    search.stop()
    assert search.state == "stopped"
    assert row_search.search(path, "question 47777") is search
    again = row_search.search(path, "question 47777", again=True)
    again.wait(2, PATIENCE)
    assert again is not search and [row["row"] for row in again.matches] == [47_777]


def test_one_row_is_returned_whole_and_many_are_cut(home, tmp_path):
    path = datasets.path_of(stored(tmp_path, json.dumps({"text": "x" * 5000}) + '\n{"text": "b"}\n'))
    cut, whole = row_pages.page(path, 1, 2)[0], row_pages.page(path, 1, 1)[0]
    assert (len(cut["values"]["text"]), cut["cut"]) == (2000, ["text"])
    assert (len(whole["values"]["text"]), whole["cut"]) == (5000, [])


def test_every_row_of_a_csv_file_is_reached_with_its_index(home, tmp_path, monkeypatch):
    monkeypatch.setattr(row_pages, "REACHABLE", 100)
    monkeypatch.setattr(row_pages, "_INDEXED_BYTES", 1)
    item = stored(tmp_path, "text,n\n" + "".join(f'"line\nof {n}",{n}\n' for n in range(1, 1001)), "rows.csv")
    path = datasets.path_of(item)
    before = row_pages.page(path, 990, 25)
    assert index_made(path).stat().st_size > 0
    assert row_pages.page(path, 990, 25) == before
    assert [row["values"] for row in before] == [{"text": f"line\nof {n}", "n": f"{n}"} for n in range(990, 1001)]
    assert row_pages.reachable(item.format, item.rows) == 1000


def test_a_row_out_of_reach_of_a_text_file_is_refused_with_what_to_do(home, tmp_path, monkeypatch):
    monkeypatch.setattr(row_pages, "REACHABLE", 2)
    path = datasets.path_of(stored(tmp_path, "a\nb\nc\n", "rows.txt"))
    assert [row["values"]["text"] for row in row_pages.page(path, 1, 2)] == ["a", "b"]
    with pytest.raises(DataError, match=r"beyond row 2.*JSONL, CSV or Parquet"):
        row_pages.page(path, 3, 1)


def test_a_document_of_rows_names_the_offset_of_the_next_ones(home, tmp_path):
    item = stored(tmp_path, "".join(f'{{"text": "word {n % 4}"}}\n' for n in range(1, 11)))
    part = rows_document.document(item, 4, 4, seconds=PATIENCE).model_dump()
    assert ([row["row"] for row in part["rows"]], part["total"], part["next"]) == ([5, 6, 7, 8], 10, 8)
    assert rows_document.document(item, 50, 4, seconds=PATIENCE).model_dump(exclude_unset=True) == {
        "rows": [],
        "offset": 50,
        "total": 10,
        "next": None,
    }
    found = rows_document.document(item, 0, 2, "WORD 1", seconds=PATIENCE).model_dump()
    assert ([row["row"] for row in found["rows"]], found["next"]) == ([1, 5], 2)
    rest = rows_document.document(item, 2, 2, "word 1", seconds=PATIENCE).model_dump()
    assert ([row["row"] for row in rest["rows"]], rest["next"], rest["complete"]) == ([9], None, True)
