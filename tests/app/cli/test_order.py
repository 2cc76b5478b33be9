"""`lathe edit`, `lathe delete` and `lathe queue`."""

import json

import pytest
from click.testing import CliRunner
from played_run import PlayedRun

from app.cli.__main__ import main
from worker import celery_app
from worker.store import database
from worker.store.tables import Run


@pytest.fixture
def lathe(home, monkeypatch):
    """Calls the command; returns exit code, standard output and standard error."""
    monkeypatch.setattr(celery_app, "notify", lambda run_id: False)

    def call(*arguments, **options):
        result = CliRunner().invoke(main, list(arguments), **options)
        return result.exit_code, result.stdout, result.stderr

    return call


def test_edit_adds_and_removes_tags_and_reports_refusals(lathe):
    ended, queued = PlayedRun("sums").claim().end(), PlayedRun("letters")
    assert lathe("edit", ended.id, queued.id, "--tag", "Paper", "--tag", "x", "--pin") == (0, "2 runs changed.\n", "")
    code, out, err = lathe("edit", ended.id, queued.id, "--untag", "x", "--archive")
    assert (code, out) == (1, "1 run changed.\n")
    assert f"{queued.id}: is queued. Stop it before you archive it." in err
    rows = json.loads(lathe("runs", "--search", "tag:paper is:archived", "--json")[1])
    assert [(row["id"], row["tags"], row["pinned"]) for row in rows] == [(ended.id, ["paper"], True)]


def test_a_name_is_for_one_run(lathe):
    code, _, err = lathe("edit", PlayedRun("a").id, PlayedRun("b").id, "--name", "c")
    assert (code, "is for one run" in err) == (1, True)


def test_delete_asks_and_deletes(lathe):
    run = PlayedRun("sums").claim().end()
    assert lathe("delete", run.id, input="n\n")[0] == 1
    code, out, err = lathe("delete", run.id, input="y\n")
    assert (code, "1 run deleted." in out, "Delete sums" in err) == (0, True, True)
    with database.read() as session:
        assert session.get(Run, run.id) is None


def test_the_queue_is_listed_moved_held_and_paused(lathe):
    first, second = PlayedRun("first"), PlayedRun("second")
    assert lathe("queue", "move", second.id, "--first")[0] == 0
    assert lathe("queue", "hold", first.id)[0] == 0
    assert lathe("queue", "priority", first.id, "low")[0] == 0
    lines = lathe("queue")[1].splitlines()
    assert ["second" in lines[1], "first" in lines[2] and "low" in lines[2] and "held" in lines[2]] == [True, True]
    assert "The queue is paused" in lathe("queue", "pause")[2]
    assert json.loads(lathe("queue", "--json")[1])["paused_at"]
    assert lathe("queue", "resume")[0] == 0
    assert json.loads(lathe("queue", "release", first.id, "--json")[1])["waiting"][1]["held"] is False
    assert "Give one of" in lathe("queue", "move", first.id)[2]
