"""The filter of the history."""

import pytest
from held_runs import claim, finish

from worker.store import database as db
from worker.store import filters, run_list, runs
from worker.store.filters import FilterError, Part
from worker.store.run_list import Query
from worker.store.tables import Run, Status


def found(search):
    with db.read() as session:
        return {run.name for run in run_list.listing(session=session, query=Query(search=search))}


@pytest.fixture
def history(database, new_run):
    """Three runs: "low" finished with a loss of 0.5, "high" failed with 2.0, "new" queued."""
    low = new_run(name="low", model="org/llama", method="lora", lora_r=8, learning_rate=1e-4, data="alpaca.jsonl")
    high = new_run(name="high", model="org/qwen", method="full", learning_rate=2e-5, data="dolly.jsonl", tf32=True)
    new_run(name="new", model="org/qwen", data="alpaca.jsonl")
    for run, status, loss in ((low, Status.FINISHED, 0.5), (high, Status.FAILED, 2.0)):
        finish(claim(run.id), status)
        with db.write() as session:
            stored = session.get(Run, run.id)
            stored.final_loss, stored.peak_bytes, stored.step = loss, 3 * 2**30, 100
    with db.write() as session:
        runs.describe(session=session, run_id=low.id, tags=["Paper", "läuft"], notes="the good one", pinned=True)


FOUND = [
    ("method:lora status:finished data:alpaca", {"low"}),
    ("status:failed,queued", {"high", "new"}),
    ("-status:failed", {"low", "new"}),
    ("loss<1", {"low"}),
    ("loss>=0.5", {"low", "high"}),
    ("-loss<1", {"high", "new"}),
    ("peak>2", {"low", "high"}),
    ("lora_r<=8", {"low"}),
    ("learning_rate<1e-4", {"high"}),
    ("tf32:yes", {"high"}),
    ("tf32:no", {"low", "new"}),
    ("deepspeed_config:none", {"low", "high", "new"}),
    ("tag:paper", {"low"}),
    ("tag:pap", set()),
    ("LÄUFT", {"low"}),
    ('notes:"good one"', {"low"}),
    ("model=org/QWEN", {"high", "new"}),
    ("is:pinned", {"low"}),
    ("-is:pinned qwen", {"high", "new"}),
    ("queued:1h", {"low", "high", "new"}),
    ("queued>1h", set()),
    ("queued>2020-01-01", {"low", "high", "new"}),
    ("ended<2020-01-01", set()),
    ("duration<1h", {"low", "high"}),
    ("step>=100 step<101", {"low", "high"}),
    ('"org/llama"', {"low"}),
    ("", {"low", "high", "new"}),
]
GROUPED = [
    ("model", [["low"], ["high", "new"]]),
    ("data", [["low", "new"], ["high"]]),
    ("tag", [["low"], ["high", "new"]]),
    ("sweep", [["high", "low", "new"]]),
    ("learning_rate", [["high"], ["low"], ["new"]]),
    ("tf32", [["low", "new"], ["high"]]),
    ("lora_r", [["low"], ["high", "new"]]),
    ("lr_scheduler", [["high", "low", "new"]]),
]
WRONG = [
    ("metod:lora", "metod", "Did you mean method"),
    ("status:asleep", "status", "Give queued"),
    ("loss<low", "loss", "is not a number"),
    ("queued:soon", "queued", "queued:7d"),
    ("tf32:perhaps", "tf32", "tf32:yes"),
    ("name>b", "name", "Write name:b"),
    ("is:blue", "is", "pinned, archived"),
    ("https://example.org", "https", "in quotes"),
]


def test_a_filter_finds_the_runs_that_it_describes(history, subtests):
    for search, names in FOUND:
        with subtests.test(search):
            assert found(search) == names


def test_a_wrong_filter_names_the_field_and_the_fix(history, subtests):
    for search, field, words in WRONG:
        with subtests.test(search), pytest.raises(FilterError, match=words) as refused:
            found(search)
        assert refused.value.problem.field == field


def test_an_archived_run_is_listed_only_on_request(history):
    with db.write() as session:
        run = run_list.listing(session=session, query=Query(search="name:high"))[0]
        runs.set_archived(session=session, run_id=run.id, archived=True)
    assert found("") == {"low", "new"}
    assert found("is:archived") == {"high"}


def test_every_field_has_an_example_that_is_a_filter_of_it():
    for name, example in filters.fields().items():
        assert filters.parts(example)[0].field == name


def test_quotes_keep_words_together_and_a_sign_in_them_is_text():
    assert filters.parts('a "b: c" -name:"x y"') == [
        Part("", "", "a"),
        Part("", "", "b: c"),
        Part("name", ":", "x y", negated=True),
    ]


def test_the_history_is_cut_into_pages_with_pinned_runs_first(history):
    with db.read() as session:
        names = [
            run.name for n in range(3) for run in run_list.listing(session=session, query=Query(limit=1, offset=n))
        ]
        assert names == ["low", "new", "high"]
        assert run_list.count(session=session) == 3
        assert run_list.count(session=session, query=Query(Status.FAILED, "qwen")) == 1


def groups(group_by, **chosen):
    with db.read() as session:
        found = run_list.groups(session=session, group_by=group_by, query=Query(**chosen))
        return [(group.total, group.best_loss, [run.name for run in group.runs]) for group in found]


def test_runs_are_grouped_by_what_is_theirs_or_by_a_setting(history, subtests):
    for group_by, names in GROUPED:
        with subtests.test(group_by):
            assert [sorted(group[2]) for group in groups(group_by)] == names


def test_a_group_tells_how_many_runs_it_has_and_their_best_loss_on_other_pages_too(history):
    assert groups("model", limit=1, offset=2, order_by="name", descending=False) == [(2, None, ["new"])]
    with db.write() as session:
        for run in run_list.listing(session=session):
            run.best_loss = {"low": 1.5, "high": 1.25}.get(run.name)
            session.add(run)
    assert {(total, best) for total, best, _ in groups("lr_scheduler")} == {(3, 1.25)}
    assert groups("lora_r", search="name:low")[0][:2] == (1, 1.5)


def test_what_runs_cannot_be_grouped_by_is_named(history):
    with pytest.raises(FilterError, match="name of a setting") as refused:
        groups("metod")
    assert refused.value.problem.field == "group"


def test_letters_beyond_ascii_match_in_any_case(database, new_run):
    run = new_run(name="Ärger mit Öl")
    with db.read() as session:
        for search in ("name=ärger-x", "name:ÄRGER", 'name="ärger mit öl"', "ärger", "ÖL"):
            found = [one.id for one in run_list.listing(session=session, query=run_list.Query(search=search))]
            assert found == ([] if search.endswith("-x") else [run.id]), search
