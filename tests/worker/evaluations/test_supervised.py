"""Evaluations by real supervisors and the real program on a tiny model: lost, requeued, stopped, finished."""

import json
import os
import shutil
import signal

import psutil
import pytest
import vllm_program
from patience import eventually
from played_run import SUMMARY, PlayedRun
from supervised import started  # noqa: F401
from tiny import make_data, make_model

from app.documents.results import evaluated_rows
from app.documents.results import evaluations as document
from app.format import evaluation_text as words
from training.run_folder.paths import RUN_VARIABLE
from worker.evaluations import starting
from worker.evaluations.submit import submit
from worker.machine import overload, processes, programs
from worker.machine.process_identity import Identity
from worker.settings import get_settings
from worker.store import database, evaluations, prompt_sets
from worker.store.tables import DeviceLease, Status

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("home", "started")]
OWN = {"own.py": "def words(prompt, answer, expected, row):\n    return len(row['completion'].split())\n"}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A finished run of a tiny model whose training data has the evaluation's first rows."""
    monkeypatch.setattr(overload, "here", lambda: "")
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "train.jsonl", rows=3)
    played = PlayedRun("tiny", model=str(model), data=str(data), max_new_tokens=4).claim("elsewhere/cpu")
    return played.leave_result()


def get(item):
    with database.read() as session:
        return evaluations.get(session=session, evaluation_id=item.id)


def supervised(item):
    """The supervisor that has taken the evaluation over."""
    owner = Identity.parse(get(item).holder)
    return psutil.Process(owner.pid) if owner and owner.pid != os.getpid() else None


def test_an_evaluation_survives_the_loss_of_its_supervisor_and_finishes_with_scores_and_overlap(run, tmp_path):
    rows = make_data(tmp_path / "rows.jsonl", rows=6)
    item = submit(run, {"source": "base", "metrics": ["exact_match", "own.py:words"], "own": OWN}, data=str(rows))
    assert [one.id for one in starting.start_waiting()] == [item.id]
    supervisor = eventually(lambda: supervised(item))
    program = eventually(lambda: processes.marked(RUN_VARIABLE, f"evaluation-{item.id}"), every=0.2)
    supervisor.send_signal(signal.SIGKILL)
    eventually(lambda: all(processes.is_gone(one) for one in program))  # nothing answers rows unsupervised
    assert [one.id for one in eventually(starting.recover)] == [item.id]
    assert (get(item).status, get(item).attempt) == (Status.QUEUED, 1)
    starting.start_waiting()
    ended = eventually(lambda: (one := get(item)).status.ended and one, every=0.2)
    assert (ended.status, ended.attempt, ended.error) == (Status.FINISHED, 2, None)
    assert (ended.overlap["rows"], ended.overlap["equal"]) == (6, 3)
    assert ended.summary["rows"] == 6
    card = document.card_of(ended)
    assert (card.data, card.sha256, card.rows) == ("rows.jsonl", ended.asked.sha256, 6)
    assert card.decoding == {"search": "greedy", "max_new_tokens": 4}
    assert card.weights["source"] == "base"
    assert card.engine.startswith("transformers ") and card.dtype == "float32"
    assert list(card.metrics) == ["exact_match", "own.py:words"]
    assert ended.summary["metrics"]["own.py:words"]["mean"] == pytest.approx(
        sum(len(str(n * 37)) for n in range(6)) / 6
    )
    answers = evaluated_rows.rows(ended)[:]
    assert [row.row for row in answers] == [1, 2, 3, 4, 5, 6]
    assert [row.row for row in evaluated_rows.rows(ended, metric="own.py:words", order="highest")[:3]] == [4, 5, 6]
    with database.read() as session:
        assert session.get(DeviceLease, ended.device) is None


def ended(item):
    starting.start_waiting()
    return eventually(lambda: (one := get(item)).status.ended and one, every=0.2)


def test_leaked_rows_are_left_out_and_only_where_they_are_known(run, tmp_path):
    rows = make_data(tmp_path / "rows.jsonl", rows=6)
    asked = {"source": "base", "metrics": ["exact_match"], "exclude_leaked_rows": True, "rows": 2}
    found = ended(submit(run, asked, data=str(rows)))
    assert (found.error, found.overlap["rows"], found.overlap["equal"]) == (None, 6, 3)
    assert [row["row"] for row in evaluated_rows.records(found)] == [3, 4]
    shown = words.lines(document.document(found).model_dump(mode="json"))
    assert any(line.endswith("These rows are left out.") for line in shown)
    nothing = make_data(tmp_path / "same.jsonl", rows=3)
    assert ended(submit(run, asked, data=str(nothing))).error["field"] == "exclude_leaked_rows"
    (tmp_path / "train.jsonl").unlink()
    error = ended(submit(run, asked, data=str(rows))).error
    assert error["field"] == "exclude_leaked_rows" and "The training rows could not be read" in error["message"]


def test_a_prompt_set_is_answered_by_a_new_result_without_anybody_asking(tmp_path, home, monkeypatch):
    monkeypatch.setattr(overload, "here", lambda: "")
    prompts = [{"user": "count 1: ", "system": "", "mode": "chat"}, {"user": "abc", "system": "", "mode": "text"}]
    with database.write() as session:
        asked = prompt_sets.save(session=session, name="counts", prompts=prompts, owner="anna")
        prompt_sets.ask_every_result(session=session, set_id=asked.id, every_result=True)
        prompt_sets.save(session=session, name="another", prompts=prompts, owner="anna")
    model = make_model(tmp_path / "model")
    classifier = PlayedRun("classes", task="classification").claim("elsewhere/cpu")
    played = PlayedRun("tiny", model=str(model), method="full", max_new_tokens=4).claim("elsewhere/cpu2")
    folder = get_settings().runs_dir / played.id
    shutil.copytree(model, folder / "model")
    (folder / "config.json").write_text(json.dumps(played.row.config))
    classifier.end(summary=SUMMARY)
    played.end(summary=SUMMARY)
    (item,) = starting.start_waiting()
    assert (item.run_id, item.owner, item.request["name"]) == (played.id, "anna", "prompt set counts")
    ended = eventually(lambda: (one := get(item)).status.ended and one, every=0.2)
    assert (ended.error, ended.summary["rows"], ended.summary["metrics"]) == (None, 2, {})
    with database.read() as session:
        kept = {one.name: one.answers for one in prompt_sets.listing(session=session)}
    assert kept["another"] == {}
    assert [answer["text"] for answer in kept["counts"][played.id]] == [
        row.answer for row in evaluated_rows.rows(ended)[:]
    ]


def test_vllm_answers_an_evaluation_with_the_same_scores_and_is_named(run, tmp_path, monkeypatch):
    data = str(make_data(tmp_path / "rows.jsonl", rows=6))
    expected = finished(submit(run, {"source": "base"}, data=data))
    monkeypatch.setenv("LATHE_VLLM_COMMAND", str(vllm_program.install(tmp_path)))
    get_settings.cache_clear()
    by_vllm = finished(submit(run, {"source": "base"}, data=data))
    card = expected.summary["card"] | {"engine": "vllm"}
    assert by_vllm.summary == expected.summary | {"engine": {"name": "vllm", "reason": ""}, "card": card}
    assert evaluated_rows.rows(by_vllm)[:] == evaluated_rows.rows(expected)[:]
    assert "Answered by vLLM." in words.lines(document.document(by_vllm).model_dump(mode="json"))
    # What it cannot load, transformers answers: here for want of a context that is long enough.
    by_transformers = finished(submit(run, {"source": "base", "max_new_tokens": 600, "rows": 1}, data=data))
    assert by_transformers.summary["engine"]["name"] == "transformers"
    assert "exceed the model's context of 512" in words.engine(by_transformers.summary)


def finished(item):
    starting.start_waiting()
    ended = eventually(lambda: (one := get(item)).status.ended and one, every=0.2)
    assert ended.error is None
    return ended


def test_an_evaluation_whose_program_is_killed_is_queued_again_and_not_called_out_of_memory(run, tmp_path):
    item = submit(run, {"source": "base"}, data=str(make_data(tmp_path / "rows.jsonl", rows=6)))
    starting.start_waiting()
    eventually(lambda: supervised(item))

    def program():
        marked = processes.marked(RUN_VARIABLE, f"evaluation-{item.id}")
        return next((one for one in marked if programs.EVALUATE.module in one.cmdline()), None)

    eventually(program, every=0.2).kill()
    queued = eventually(lambda: (one := get(item)).status is not Status.RUNNING and one, every=0.2)
    assert (queued.status, queued.attempt, queued.error) == (Status.QUEUED, 1, None)
    assert queued.reason == "Its program was killed by SIGKILL."


def test_a_running_evaluation_is_stopped(run, tmp_path):
    item = submit(run, {"source": "base"}, data=str(make_data(tmp_path / "rows.jsonl", rows=6)))
    starting.start_waiting()
    eventually(lambda: supervised(item))
    with database.write() as session:
        evaluations.request_stop(session=session, evaluation_id=item.id)
    assert eventually(lambda: (one := get(item)).status.ended and one, every=0.2).status is Status.STOPPED
    assert processes.marked(RUN_VARIABLE, f"evaluation-{item.id}") == []


def test_an_evaluation_that_is_lost_too_often_fails_with_the_reason(run, tmp_path, monkeypatch):
    rows = make_data(tmp_path / "rows.jsonl", rows=2)
    item = submit(run, {"source": "base"}, data=str(rows))
    dead = Identity.parse(str(Identity.of(os.getpid())))
    owner = f"{dead.host}:{2**22 - 1}:{dead.start}"
    for attempt in (1, 2, 3):
        with database.write() as session:
            assert evaluations.claim(
                session=session, evaluation_id=item.id, owner=owner, device=f"{dead.host}/cpu", lease_seconds=60
            )
        assert [one.id for one in starting.recover()] == [item.id]
        assert get(item).status is (Status.QUEUED if attempt < 3 else Status.FAILED)
    assert "It was tried 3 times." in get(item).error["message"]
