"""What an evaluation is checked for before it is queued, and its claims in the database."""

import json

import pytest
from played_run import SUMMARY, PlayedRun
from sqlmodel import select

from training.config.fields import ConfigError
from worker.allowed_paths import allowed
from worker.evaluations import suites
from worker.evaluations.submit import folder_of, remove, submit
from worker.settings import get_settings
from worker.store import claims, database, evaluations
from worker.store.evaluations import EvaluationActive, EvaluationEnded
from worker.store.tables import DeviceLease, Evaluation, Run, Status
from worker.store.work import EVALUATION, LeaseLost

CODE = "def score(prompt, answer, expected): return 1"


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"p{n}", "completion": f"a{n}"}) + "\n" for n in range(4)))
    return str(path)


def ended(name="letters", **settings):
    run = PlayedRun(name, **settings).claim()
    run.end(summary=SUMMARY)
    (get_settings().runs_dir / run.id / "adapter").mkdir(parents=True)
    return run.id


def refused(run_id, values=None, **options):
    with pytest.raises(ConfigError) as failure:
        submit(run_id, values or {}, **options)
    return [(one.field, one.message) for one in failure.value.problems]


def claimed(item, owner="host:1:1", device="host/cpu"):
    with database.write() as session:
        return evaluations.claim(session=session, evaluation_id=item.id, owner=owner, device=device, lease_seconds=60)


def get(item):
    with database.read() as session:
        return evaluations.get(session=session, evaluation_id=item.id)


def leases():
    with database.read() as session:
        return list(session.exec(select(DeviceLease.device)))


def test_a_data_file_is_stored_and_the_evaluation_queued(home, rows):
    item = submit(ended(), {"rows": 2}, data=rows)
    assert (item.status, item.request["name"], item.request["rows"]) == (Status.QUEUED, "rows.jsonl", 2)
    assert item.request["metrics"] == ["exact_match", "f1", "rougeL"]
    assert item.request["path"].startswith(str(get_settings().datasets_dir))


def test_a_classifier_has_no_base_to_compare_with_so_a_suite_of_it_is_refused_before_it_is_queued(home, rows):
    run_id = ended(task="classification")
    assert refused(run_id, {"source": "base"}, data=rows) == [("source", "has no trained classes before training.")]
    with pytest.raises(ConfigError) as failure:
        suites.start(run_id, suites.parse({"data": rows}))
    message = "is a classifier: the model before training, with which a suite compares, has no trained classes."
    assert [(one.field, one.message) for one in failure.value.problems] == [("run", message)]
    with database.read() as session:
        assert not session.exec(select(Evaluation)).all()


def test_what_cannot_be_evaluated_is_refused_with_the_reason(home, rows):
    running = PlayedRun("running").claim("other/cpu")
    assert refused(running.id, data=rows) == [("run", "is running.")]
    assert refused(ended(), data="missing.jsonl") == [("data", "is neither a file nor a data set id.")]
    assert refused(ended()) == [("data", "is missing.")]
    assert refused(ended(), {"metrics": ["accuracy"]}, data=rows) == [
        ("metrics", "is for runs of the task classification.")
    ]
    assert refused(ended(), {"lm_eval": ["arc_easy"]})[0][0] == "lm_eval"
    (problem,) = refused(ended(), {"metrics": ["bleu"]}, data=rows)
    assert problem[1].startswith("metric 'bleu' is unknown")
    wrong = {"metrics": ["regex", '{"reward": "length", "mots": 3}']}
    assert refused(ended(), wrong, data=rows) == [
        ("metrics", "needs the option pattern."), ("metrics", "is no option of length."),
    ]  # fmt: skip


def test_a_run_without_a_result_is_refused_unless_a_checkpoint_is_named(home, rows):
    run = PlayedRun("stopped").claim()
    run.end(summary=SUMMARY)
    assert refused(run.id, data=rows)[0][0] == "source"
    assert submit(run.id, {"source": "checkpoint-20"}, data=rows).request["source"] == "checkpoint-20"


def test_accounts_may_neither_run_code_nor_call_other_addresses(home, rows):
    run, own = ended(), {"metrics": ["own.py:score"], "own": {"own.py": CODE}}
    paths = allowed()
    code = [("own", "is code, which only the user who runs the server may run.")]
    for metrics in (["own.py:score"], ["f1"], ['{"name": "own.py:score", "reward": "length"}'], ["no metric"]):
        assert refused(run, own | {"metrics": metrics}, data=rows, allowed=paths) == code
    assert refused(run, {"own": {"own.py": "not Python ("}}, data=rows, allowed=paths) == code  # unread
    judge = {"metrics": ["judge"], "judge": {"url": "http://169.254.169.254/v1", "model": "m"}}
    assert refused(run, judge, data=rows, allowed=paths) == [("judge_url", "is not a judge of this server.")]
    reward = json.dumps({"name": "other", "reward": "judge"} | judge["judge"])
    assert refused(run, {"metrics": [reward]}, data=rows, allowed=paths) == [
        ("judge_url", "is not a judge of this server.")
    ]
    task = {"lm_eval": ["folder/task.yaml"]}
    assert refused(run, task, allowed=paths)[0][1].startswith("is not the name of a task")
    both = own | judge | {"metrics": ["own.py:score", "judge"]}
    assert submit(run, both, data=rows).request["own"] == {"own.py": CODE}  # the user who runs the server


def test_a_device_is_leased_once_and_freed_at_the_end(home, rows):
    first, second = submit(ended(), {}, data=rows), submit(ended(), {}, data=rows)
    assert claimed(first).attempt == 1
    assert claimed(second) is None  # the device is in use
    assert claimed(first, device="host/cuda:1") is None  # it is not queued
    assert get(second).status is Status.QUEUED
    with database.write() as session:
        assert evaluations.finish(
            session=session, evaluation_id=first.id, attempt=1, status=Status.FINISHED, summary={}
        )
    assert leases() == []
    assert claimed(second).device == "host/cpu"


def test_the_end_of_a_resumed_run_does_not_free_the_device_of_its_evaluation(home, rows):
    run = ended()
    item = submit(run, {}, data=rows)
    claimed(item)
    with database.write() as session:
        session.get_one(Run, run).status = Status.RUNNING
        assert claims.finish(session=session, run_id=run, attempt=1, status=Status.FINISHED)
    assert leases() == ["host/cpu"]


def test_only_the_holder_renews_and_a_stop_reaches_it(home, rows):
    item = submit(ended(), {}, data=rows)
    claimed(item)
    held = {"key": (item.id, 1), "lease_seconds": 60}
    with database.write() as session:
        assert EVALUATION.adopt(session, holder="host:2:2", **held)
        assert not EVALUATION.renew(session, holder="host:2:2", phase="answering", done=1, total=4, **held).stopping
    with pytest.raises(LeaseLost), database.write() as session:
        EVALUATION.renew(session, holder="host:1:1", **held)
    with database.write() as session:
        evaluations.request_stop(session=session, evaluation_id=item.id)
        assert EVALUATION.renew(session, holder="host:2:2", **held).stopping
    assert (get(item).phase, get(item).done) == ("answering", 1)


def test_a_lost_evaluation_is_queued_again_and_its_old_holder_refused(home, rows):
    item = submit(ended(), {}, data=rows)
    running = claimed(item)
    with database.write() as session:
        assert EVALUATION.requeue(session, running, "lost")
    assert (get(item).status, get(item).reason, leases()) == (Status.QUEUED, "lost", [])
    assert claimed(item).attempt == 2
    with database.write() as session:
        assert not evaluations.finish(session=session, evaluation_id=item.id, attempt=1, status=Status.FINISHED)


def test_a_queued_one_is_stopped_at_once_and_an_ended_one_deleted_with_its_folder(home, rows):
    item = submit(ended(), {}, data=rows)
    with pytest.raises(EvaluationActive):
        remove(item.id)
    with database.write() as session:
        evaluations.request_stop(session=session, evaluation_id=item.id)
    assert get(item).status is Status.STOPPED
    with pytest.raises(EvaluationEnded), database.write() as session:
        evaluations.request_stop(session=session, evaluation_id=item.id)
    folder_of(item).mkdir(parents=True)
    remove(item.id)
    assert not folder_of(item).exists()


def test_a_function_with_options_is_no_second_metric_without_them(home, rows):
    metric = '{"reward": "own.py:score", "most": 3}'
    item = submit(ended(), {"metrics": [metric], "own": {"own.py": CODE}}, data=rows)
    assert item.request["metrics"] == ["own.py:score"]
