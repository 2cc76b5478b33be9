"""What a data set's page shows and does, on a real store with real tokens; no browser."""

import json
import time

import pytest
from played_run import PlayedRun
from starlette.testclient import TestClient
from web import client

from app.pages import data, data_cost, dataset, dataset_data, datasets, sources
from app.pages.dataset import act, show
from app.pages.dataset_view import View
from app.pages.datasets import Shown
from app.pages.intake import Intakes, intakes
from training.failure import DataError
from worker import database as db
from worker import datasets as store
from worker import measuring, runs
from worker.models import Run
from worker.settings import get_settings

MODEL = "static/starter"
SETTLED_SECONDS = 60  # of a real process on a busy machine


@pytest.fixture
def item(home, rows):
    for cache in (dataset_data._subjects, dataset_data._models, data_cost._states):
        cache.clear()
    return store.add_file(path=rows, name=rows.name)


def counted(view):
    """The page once the tokens are counted."""
    deadline = time.monotonic() + SETTLED_SECONDS
    while (shown := show(view)).seconds == dataset.COUNTING_SECONDS and time.monotonic() < deadline:
        time.sleep(0.1)
    return shown.parts[3]


def test_the_tokens_are_counted_once_somebody_looks_and_every_tab_is_told_by_them(item):
    view = View(id=item.id, model=MODEL, tab="lengths", max_length=64)
    waiting = show(view)
    assert "Counting tokens" in waiting.parts[3] and waiting.seconds == dataset.COUNTING_SECONDS
    lengths = counted(view)
    assert "1 of 40 rows (2.5%) are cut off" in lengths and "1 row teaches nothing" in lengths
    assert ">40</a>" in lengths  # the longest row
    assert "such as row" in lengths and "39" in lengths  # the copy
    last = counted(View(id=item.id, model=MODEL, tab="tokens", row=40, max_length=64))
    assert "Row 40 of 40" in last and "This row teaches nothing at 64 tokens" in last
    batches = counted(
        View(id=item.id, model=MODEL, tab="batches", max_length=2048, micro_batch_size=4, num_processes=2)
    )
    assert "Memory peaks at" in batches and "filler" in batches


def test_a_model_without_a_tokenizer_is_explained_and_can_be_tried_again(item, tmp_path):
    view = View(id=item.id, model=str(tmp_path / "nothing"), tab="tokens")
    (tmp_path / "nothing").mkdir()
    told = counted(view)
    assert "The tokens could not be counted." in told and "Try again" in told
    again, _ = act(view, {"again": True})
    assert again == view


def test_a_number_that_makes_no_sense_is_said_and_the_one_before_stands(item):
    view, told = act(View(id=item.id), {"max_length": "none"})
    assert view.max_length == 1024
    assert "Max length: &#39;none&#39;" in told and "8 to 1048576" in told
    assert show(view, told).parts[2].endswith(str(told))


def test_any_row_may_come_at_random(item):
    assert {act(View(id=item.id), {"random": True})[0].row for _ in range(60)} <= set(range(1, 41))


def test_a_page_without_a_data_set_says_so(home):
    assert "No such data set" in show(View(id="<b>")).parts[0]
    assert "names no data set" in show(View()).parts[0]


def test_a_row_beyond_the_last_is_the_last(item):
    assert show(View(id=item.id, row=999)).view.row == 40


@pytest.fixture
def odd(home, tmp_path):
    """A data set whose format is not known; its fourth row has no answer to map to."""
    listed = [{"qa": {"q": f"question {n}", "a": [f"answer {n}"]}} for n in range(5)]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    dataset_data.forget()
    return store.add_file(path=path, name="odd.jsonl")


def test_a_mapping_is_tried_live_saved_with_the_set_and_forgotten(odd):
    assert "No known format fits" in show(View(id=odd.id, tab="lengths", model=MODEL)).parts[3]
    view, _ = act(View(id=odd.id, tab="columns"), {"role.prompt": "qa.q"})
    assert "Still to choose: completion" in show(view).parts[3]
    view, _ = act(view, {"role.completion": "qa.a.0"})
    assert view.columns == "prompt=qa.q, completion=qa.a.0"
    assert '<dd class="answer">answer 0</dd>' in show(view).parts[3]
    view, told = act(view, {"save": True})
    assert "is saved" in told and view.columns == ""
    assert dataset_data.subject(odd.id).item.columns_map == "prompt=qa.q, completion=qa.a.0"
    act(view, {"forget": True})
    assert dataset_data.subject(odd.id).item.columns_map is None


def test_a_mapping_that_cannot_train_is_explained_and_not_saved(odd):
    view, told = act(View(id=odd.id, tab="columns", columns="prompt=qa.q, completion=qa.a"), {"save": True})
    assert "The mapping is not saved." in told and "odd.jsonl, 5 rows" in told and "qa.a" in told
    assert dataset_data.subject(odd.id).item.columns_map is None
    assert view.columns


def test_new_run_says_what_a_maximum_length_costs_once_the_tokens_are_counted(item):
    assert "are not counted yet" in data.describe(item.id, MODEL, "64")
    counted(View(id=item.id, model=MODEL, tab="lengths"))
    data_cost._states.clear()
    told = data.describe(item.id, MODEL, "64")
    assert "At 64 tokens 1 of 40 rows is cut off, and <b" in told and "1 row teaches nothing" in told
    assert f"/dataset?id={item.id}" in told
    assert "every row teaches something" in data.describe(item.id, MODEL, "2048")
    assert "tokens" not in data.describe(item.id, MODEL, "abc")


def settled(own):
    deadline = time.monotonic() + SETTLED_SECONDS
    while any(one.state == "checking" for one in own.all()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return own.all()


def test_an_intake_goes_on_without_the_page_and_tells_everything_that_is_wrong(home, tmp_path, rows):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": 5}\n{"prompt": "d"}\n')
    own = Intakes()
    own.begin("bad.jsonl", 1, lambda: [store.add_file(path=bad, name="bad.jsonl")])
    own.begin("sums.jsonl", 1, lambda: [store.add_file(path=rows, name="sums.jsonl")])
    refused, done = settled(own)
    assert (refused.state, [problem["line"] for problem in refused.problems]) == ("refused", [1, 2])
    assert done.state == "done" and done.made[0][1] == "sums.jsonl"
    own.dismiss(refused.id)
    assert own.all() == [done]


def test_an_intake_that_fails_for_a_mistake_of_ours_is_told_too(home):
    own = Intakes()
    own.begin("x", 1, lambda: 1 / 0)
    [told] = settled(own)
    assert "ZeroDivisionError" in told.problems[0]["message"]


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["a_val.jsonl", "b.jsonl"], "b.jsonl"),
        (["big.jsonl", "small.jsonl"], "big.jsonl"),
        (["held-out.csv", "rows.csv"], "rows.csv"),
    ],
)
def test_training_data_is_told_from_validation_data_by_name_or_else_by_size(tmp_path, names, first):
    for size, name in zip((200, 100), names, strict=True):
        (tmp_path / name).write_text("x" * size)
    assert sources.in_order([tmp_path / name for name in reversed(names)])[0].name == first


def test_several_uploads_become_one_set_a_pair_or_sets_of_their_own(home, tmp_path):
    def upload(way, **contents):
        folder = tmp_path / way / "upload"
        folder.mkdir(parents=True)
        for name, word in contents.items():
            (folder / f"{name}.jsonl").write_text(json.dumps({"text": f"{word} {way}"}) + "\n")
        known = {one.id for one in intakes.all()}
        sources.take_uploads(sorted(folder.iterdir()), way)
        found = [one for one in settled(intakes) if one.id not in known]
        assert not folder.exists()
        return [(one.paired, [name for _, name in one.made]) for one in found]

    assert upload(sources.ONE_SET, a="x", b="y") == [(False, ["a.jsonl + b.jsonl"])]
    assert upload(sources.PAIR, valid="x", train="y") == [(True, ["train.jsonl", "valid.jsonl"])]
    assert upload(sources.APART, c="x", d="y") == [(False, ["c.jsonl"]), (False, ["d.jsonl"])]


def test_the_reason_why_a_way_in_is_closed_is_said(home, monkeypatch):
    assert "LATHE_DATA_FOLDERS" in sources.folder_reason()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in sources.hub_reason()


def test_a_set_that_a_run_waits_for_is_not_removed_and_one_that_none_needs_is(item):
    with db.write() as session:
        run = session.get(Run, PlayedRun().id)
        run.dataset_id = item.id
        session.add(run)
    dialog, message, confirm, *_ = datasets.removed("", Shown(removing=item.id))
    assert "was not removed" in message and not confirm["interactive"]
    with db.write() as session:
        runs.request_stop(session=session, run_id=run.id)
    dialog, *_ = datasets.removed("", Shown(removing=item.id))
    assert dialog["visible"] is False
    with db.read() as session:
        assert store.listing(session=session) == []


def test_rest_lists_data_sets_and_shows_one(item):
    api: TestClient = client(data_dir=get_settings().data_dir)
    [listed] = api.get("/api/datasets", params={"search": "sums"}).json()["datasets"]
    assert (listed["id"], listed["format"], listed["file_format"], listed["used_by"]) == (
        item.id,
        "prompt/completion",
        "jsonl",
        0,
    )
    shown = api.get(f"/api/datasets/{item.id}").json()
    assert (shown["sha256"], shown["rows"], shown["runs"]) == (item.sha256, 40, [])
    missing = api.get("/api/datasets/ffffffff")
    assert missing.status_code == 404 and missing.json()["error"]["field"] == "dataset"


def test_a_page_asks_for_no_tokens_that_are_there(item):
    counted(View(id=item.id, model=MODEL, tab="lengths"))
    assert measuring.state(item.sha256, dataset_data.local_model(MODEL), None).status == "done"
    with pytest.raises(DataError):
        store.save_mapping(item.id, "prompt=nothing, completion=there")
