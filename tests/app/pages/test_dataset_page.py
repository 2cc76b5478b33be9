"""The page of a data set, on a real store with real tokens; no browser."""

import json
import re
import shutil
from dataclasses import fields
from html import unescape
from pathlib import Path

import numpy as np
import psutil
import pytest
from patience import eventually
from starlette.datastructures import QueryParams
from starlette.testclient import TestClient
from web import account, client

from app.access import dataset_imports
from app.access.dataset_imports import Intakes, intakes
from app.pages.common import form
from app.pages.dataset import page as dataset
from app.pages.dataset import snapshot
from app.pages.dataset.state import TABS, ViewState
from app.pages.new_run import data_chooser, data_cost
from app.pages.new_run.review import review
from app.pages.new_run.steps import problems_html
from training.config.run_config import RunConfig
from training.errors import DataError
from training.tokens.run_rows import selected_rows
from training.tokens.store import open_store
from worker.datasets import datasets as store
from worker.datasets import token_stores
from worker.datasets.row_search import SearchState
from worker.forecasts.row_lengths import count_rows
from worker.settings import ROOT, get_settings

MODEL = "static/starter"


@pytest.fixture
def item(home, rows):
    for cache in (snapshot._models, data_cost._states):
        cache.clear()
    return store.add_file(path=rows, name=rows.name)


def opened(dataset_id, tab="rows", **values):
    """The page as HTML."""
    answer = client().get("/dataset", params={"id": dataset_id, "tab": tab, **values})
    assert answer.status_code == 200
    return answer.text


def tokenized(dataset_id, tab, model=MODEL, **values):
    """The page once the data set is tokenized, or cannot be."""

    def page():
        text = opened(dataset_id, tab, model=model, **values)
        return text if "Needed once per tokenizer" not in text else ""

    return eventually(page, every=0.1)


def test_opening_a_tab_tokenizes_the_data_set_for_all_tabs(item):
    waiting = dataset.shown(QueryParams({"id": item.id, "tab": "lengths", "model": MODEL}))
    assert waiting["tokenized"].status == "running" and waiting["seconds"] == dataset.WAITING_SECONDS
    lengths = tokenized(item.id, "lengths", max_length=64)
    assert "1 of 40 rows (2.5%) are truncated" in lengths and "1 row has no loss tokens" in lengths
    assert ">40</a>" in lengths  # the longest row
    assert "e.g. row" in lengths and "39" in lengths  # the copy
    last = tokenized(item.id, "tokens", row=40, max_length=64)
    assert "Row 40 of 40" in last and "This row has no loss tokens at 64 tokens" in last
    batches = tokenized(item.id, "batches", max_length=2048, micro_batch_size=4, num_processes=2)
    assert "Memory peaks at" in batches and "pad tokens" in batches


def test_a_model_without_a_tokenizer_is_explained_and_can_be_tried_again(item, tmp_path):
    (tmp_path / "nothing").mkdir()
    text = tokenized(item.id, "tokens", str(tmp_path / "nothing"))
    assert "Could not tokenize the data set." in text
    again = re.search('data-do="GET ([^"]+)">Try again', text)
    assert client().get(unescape(again[1])).json()["status"] == "running"


def test_an_invalid_number_is_named_and_the_previous_one_is_kept(item):
    text = client().get(f"/dataset?id={item.id}&tab=lengths&max_length=64&max_length=none").text
    assert "Max length: &#39;none&#39;" in text and "8 to 1048576" in text and "The page shows 64." in text
    assert 'name="max_length" value="64"' in text


def test_a_page_without_a_data_set_says_so(home):
    missing = client().get("/dataset?id=<b>")
    assert missing.status_code == 404 and "Data set not found" in missing.text and "<b>&#39;" not in missing.text
    assert "The address has no id." in client().get("/dataset").text


def test_a_row_beyond_the_last_is_the_last(item):
    assert dataset.shown(QueryParams({"id": item.id, "row": "999"}))["view"].row == 40


def test_any_value_in_the_address_is_answered(item, subtests):
    eventually(lambda: "Tokenizing" not in opened(item.id, "lengths", model=MODEL))
    names = [field.name for field in fields(ViewState)]
    for value in ("\0", "x" * 900, "\x1b[2J\u202e", "-1", "1e308", "9" * 11, "nan", "[]"):
        for tab in TABS:
            with subtests.test(f"{tab} {value[:10]!r}"):
                given = {name: value for name in names if name not in ("id", "tab", "model", "search")}
                text = opened(item.id, tab, model=MODEL, **given | {"role.prompt": value})
                assert "sums.jsonl" in text and "\x1b" not in text.replace(value, "")
        assert client().get("/dataset", params={"id": value, "tab": value}).status_code == 404


def test_a_search_is_stopped_and_started_again_over_rest(item):
    opened(item.id, search="copy")
    search = snapshot.search(item, ViewState(search="copy"))
    search.state = SearchState.RUNNING
    assert 'id="stop-search"' in opened(item.id, search="copy")
    assert client().post(f"/api/datasets/{item.id}/rows/stop", json={"search": "copy"}).status_code == 204
    text = opened(item.id, search="copy")
    assert "The search was stopped" in text and "GET /api/datasets/" in text
    assert client().get(f"/api/datasets/{item.id}/rows?limit=1&wait=0&search=copy").status_code == 200
    assert snapshot.search(item, ViewState(search="copy")) is not search


@pytest.fixture
def odd(home, tmp_path):
    """A data set of unknown format with nested columns."""
    listed = [{"qa": {"q": f"question {n}", "a": [f"answer {n}"]}} for n in range(5)]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    return store.add_file(path=path, name="odd.jsonl")


def test_a_mapping_is_previewed_saved_and_removed(odd):
    assert "Unknown format" in opened(odd.id, "lengths", model=MODEL)
    chosen = {"kind": "prompt", "role.prompt": "qa.q", "role.completion": ""}
    assert "Choose a column for: completion" in opened(odd.id, "columns", **chosen)
    text = opened(odd.id, "columns", **chosen | {"role.completion": "qa.a.0"})
    assert '<dd class="answer">answer 0</dd>' in text and "columns: prompt=qa.q, completion=qa.a.0" in text
    assert f'data-do="PATCH /api/datasets/{odd.id}"' in text
    client().patch(f"/api/datasets/{odd.id}", json={"columns": "prompt=qa.q, completion=qa.a.0"})
    saved = opened(odd.id, "columns")
    assert "disabled>Saved</button>" in saved and "Remove mapping" in saved
    client().patch(f"/api/datasets/{odd.id}", json={"columns": None})
    assert "Remove mapping" not in opened(odd.id, "columns")


def test_a_mapping_that_cannot_train_is_explained_and_not_saved(odd):
    answer = client().patch(f"/api/datasets/{odd.id}", json={"columns": "prompt=qa.q, completion=qa.a"})
    problem = answer.json()["error"]
    assert answer.status_code == 422 and "odd.jsonl, 5 rows" in problem["field"] and "qa.a" in problem["field"]
    assert "Remove mapping" not in opened(odd.id, "columns")


def test_only_who_owns_a_data_set_may_save_its_mapping(item):
    api = client()
    columns = {"id": item.id, "tab": "columns"}
    assert "Save mapping" in api.get("/dataset", params=columns).text
    text = api.get("/dataset", params=columns, headers=account("alice")).text
    assert "Save mapping" not in text and "Only the owner of the data set can save a mapping." in text


def test_new_run_counts_truncated_rows_once_the_data_set_is_tokenized(item):
    description, waits = data_chooser.describe(item.id, MODEL, "64")
    assert waits and "Tokenizing for this model." in description
    tokenized(item.id, "lengths")
    data_cost._states.clear()
    description, waits = data_chooser.describe(item.id, MODEL, "64")
    assert not waits
    assert "At 64 tokens, 1 of 40 rows is truncated; <b" in description
    assert "1 row has no tokens with loss" in description and f"/dataset?id={item.id}" in description
    assert "every row has tokens with loss" in data_chooser.describe(item.id, MODEL, "2048")[0]
    assert "tokens" not in data_chooser.describe(item.id, MODEL, "abc")[0]


def beside_start(**typed):
    """What stands beside Start for these settings."""
    return problems_html(review(form.defaults() | {"model": MODEL} | typed))


def test_start_gives_advice_on_rows_without_loss_with_the_numbers_of_the_card(item):
    tokenized(item.id, "lengths")
    data_cost._states.clear()
    advice = unescape(beside_start(data=item.id, max_length="64"))
    assert "Ready to start, with advice:" in advice and 'class="ready"' not in advice
    assert f"1 of 40 rows of {item.name} has no tokens with loss within 64 tokens." in advice
    enough = json.loads(re.search(r'data-send="(\{.*?\})"', advice)[1])["changes"]["max_length"]
    assert "every row has tokens with loss" in data_chooser.describe(item.id, MODEL, str(enough))[0]
    for fitting in ({"max_length": str(enough)}, {"max_length": "64", "train_on_prompt": True}):
        assert 'class="ready"' in beside_start(data=item.id, eval_split="0", **fitting)
    assert "every row has" in data_chooser.describe(item.id, MODEL, "64", prompts="True")[0]


def test_start_says_how_many_held_out_rows_are_near_duplicates_of_training_rows(home, tmp_path):
    rows = [{"prompt": f"Question {number}", "completion": f"Answer {number}"} for number in range(10)]
    (tmp_path / "copied.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows + rows))
    copied = store.add_file(path=tmp_path / "copied.jsonl", name="copied.jsonl")
    tokenized(copied.id, "lengths")
    data_cost._states.clear()
    config = RunConfig(model=str(ROOT / MODEL), data=copied.id, eval_split=5, group_by=None)
    held_out = selected_rows(config, count_rows(config)).held_out % 10
    copies = sum(np.count_nonzero(held_out == row) == 1 for row in held_out)
    assert copies
    advice = unescape(beside_start(data=copied.id, eval_split="5", group_by="none"))
    assert f"{copies} of 5 held-out rows are near duplicates of training rows" in advice
    changes = json.loads(re.search(r'data-send="(\{.*?\})"', advice)[1])["changes"]
    assert changes == {"exclude_leaked_rows": True}
    assert 'class="ready"' in beside_start(data=copied.id, eval_split="5", group_by="none", **changes)
    assert 'class="ready"' in beside_start(data=copied.id, eval_split="5")  # near duplicates stay on one side
    assert 'class="ready"' in beside_start(data=copied.id, eval_split="0")
    assert 'class="ready"' in beside_start(data=copied.id, eval_split="5", data_slice="50%", group_by="none")


def test_start_says_how_many_rows_of_the_evaluation_data_are_near_duplicates_of_training_rows(home, tmp_path):
    rows = [{"prompt": f"Where is parcel {number} of my order?", "completion": "On its way."} for number in range(30)]
    typos = [row | {"prompt": row["prompt"].replace("parcel", "parcell")} for row in rows[:4]]
    other = [{"prompt": f"Cancel my subscription {number} today", "completion": "Done."} for number in range(6)]
    ids = []
    for name, lines in (("train.jsonl", rows), ("heldout.jsonl", typos + other)):
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in lines))
        ids.append(store.add_file(path=tmp_path / name, name=name).id)
        tokenized(ids[-1], "lengths")
    data_cost._states.clear()
    settings = {"model": MODEL, "data": ids[0], "validation_data": ids[1]}

    def checked():
        found = client().post("/api/checks", json=settings).json()["held_out"]
        return found if found["status"] == "done" else None

    assert eventually(checked) == {"status": "done", "leaked": 4, "rows": 10, "done": 0, "total": 0}
    data_cost._leaks.clear()
    advice = unescape(beside_start(data=ids[0], validation_data=ids[1]))
    assert "4 of 10 held-out rows are near duplicates of training rows" in advice


def test_pretraining_splits_texts_and_other_tasks_define_their_loss_themselves(item):
    tokenized(item.id, "lengths")
    data_cost._states.clear()
    assert "1 of 40 rows is split. <a" in data_chooser.describe(item.id, MODEL, "64", task="pretraining")[0]
    assert "1 of 40 rows is truncated. <a" in data_chooser.describe(item.id, MODEL, "64", task="seq2seq")[0]
    assert "Prompts of more than 64 tokens are left out." in data_chooser.describe(item.id, MODEL, "64", task="grpo")[0]
    assert 'class="ready"' in beside_start(data=item.id, max_length="64", task="pretraining")


def test_start_names_rows_that_train_at_no_length_and_data_that_is_truncated_whole(home, tmp_path):
    (tmp_path / "chats.jsonl").write_text(
        "".join(
            json.dumps({"messages": [{"role": "user", "content": asked}, {"role": "assistant", "content": "Yes."}]})
            + "\n"
            for asked in ("How many of them are there in all? " * 2, "Which river runs through this city? " * 3)
        )
    )
    chats = store.add_file(path=tmp_path / "chats.jsonl", name="chats.jsonl")
    model = Path(shutil.copytree(ROOT / MODEL, tmp_path / "model"))
    (model / "chat_template.jinja").write_text(
        "{% for message in messages if message.role == 'user' %}{{ message.content }}{% endfor %}"
    )
    tokenized(chats.id, "lengths", str(model))
    data_cost._states.clear()
    advice = beside_start(data=chats.id, model=str(model))
    assert "2 of 2 rows of chats.jsonl have no tokens with loss at any length." in advice
    shortest, longest = sorted(open_store(data_cost.tokens_of(chats, str(model), "").store).lengths.tolist())
    given = {"data": chats.id, "model": str(model), "train_on_prompt": True}
    advice = unescape(beside_start(**given, max_length=str(shortest - 1)))
    assert f"Every row of chats.jsonl is truncated at {shortest - 1} tokens." in advice
    assert f'{{"max_length": {longest}}}' in advice
    assert 'class="ready"' in beside_start(**given, max_length=str(shortest))


def test_new_run_does_not_tokenize_for_a_model_that_is_not_here(item):
    description, waits = data_chooser.describe(item.id, "somebody/some-model", "64")
    assert not waits and "Not tokenized for this model yet." in description


def settled(own):
    eventually(
        lambda: all(intake.state != "checking" for intake in own.all()), [psutil.Process()]
    )  # threads of this process
    return own.all()


def test_an_import_continues_without_the_page_and_lists_every_problem(home, tmp_path, rows):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": 5}\n{"prompt": "d"}\n')
    own = Intakes()
    own.begin("bad.jsonl", 1, lambda: [store.add_file(path=bad, name="bad.jsonl")])
    own.begin("sums.jsonl", 1, lambda: [store.add_file(path=rows, name="sums.jsonl")])
    refused, done = settled(own)
    assert (refused.state, [problem["line"] for problem in refused.problems]) == ("refused", [1, 2])
    assert done.state == "done" and done.added[0][1] == "sums.jsonl"
    own.dismiss(refused.id)
    assert own.all() == [done]


def test_an_import_that_fails_with_an_unexpected_error_names_it(home):
    own = Intakes()
    own.begin("x", 1, lambda: 1 / 0)
    [refused] = settled(own)
    assert "ZeroDivisionError" in refused.problems[0]["message"]


@pytest.mark.parametrize(
    ("names", "first"),
    [
        (["a_val.jsonl", "b.jsonl"], "b.jsonl"),
        (["big.jsonl", "small.jsonl"], "big.jsonl"),
        (["held-out.csv", "rows.csv"], "rows.csv"),
    ],
)
def test_names_or_else_sizes_distinguish_training_from_validation_data(tmp_path, names, first):
    for size, name in zip((200, 100), names, strict=True):
        (tmp_path / name).write_text("x" * size)
    assert dataset_imports.in_order([tmp_path / name for name in reversed(names)])[0].name == first


def test_multiple_uploads_become_one_data_set_a_pair_or_separate_data_sets(home, tmp_path):
    def upload(way, **contents):
        folder = tmp_path / way / "upload"
        folder.mkdir(parents=True)
        for name, word in contents.items():
            (folder / f"{name}.jsonl").write_text(json.dumps({"text": f"{word} {way}"}) + "\n")
        known = {intake.id for intake in intakes.all()}
        dataset_imports.from_uploads(sorted(folder.iterdir()), way)
        new = [intake for intake in settled(intakes) if intake.id not in known]
        assert not folder.exists()
        return [(intake.paired, [name for _, name in intake.added]) for intake in new]

    assert upload(dataset_imports.ONE_SET, a="x", b="y") == [(False, ["a.jsonl + b.jsonl"])]
    assert upload(dataset_imports.PAIR, valid="x", train="y") == [(True, ["train.jsonl", "valid.jsonl"])]
    assert upload(dataset_imports.SEPARATE, c="x", d="y") == [(False, ["c.jsonl"]), (False, ["d.jsonl"])]


def test_an_unavailable_source_says_why(home, monkeypatch):
    assert "LATHE_DATA_FOLDERS" in dataset_imports.folder_reason()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "HF_HUB_OFFLINE" in dataset_imports.hub_reason()


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


def test_a_tokenized_data_set_refuses_an_invalid_mapping(item):
    tokenized(item.id, "lengths")
    assert token_stores.state(item.sha256, form.local_model(MODEL), None).status == "done"
    with pytest.raises(DataError):
        store.save_mapping(item.id, "prompt=nothing, completion=there")
