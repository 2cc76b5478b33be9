"""Runs, sweeps and resumed runs that their owner's limits do not allow are refused, and nothing is stored."""

import pytest

from training.config.fields import ConfigError
from worker.datasets import datasets
from worker.runs import checks, requests, submit
from worker.runs.settle import settle
from worker.settings import get_settings
from worker.store import accounts, run_list
from worker.store import database as db
from worker.store.submissions import Submission
from worker.sweeps import lifecycle, plan
from worker.sweeps.spec import parse_sweep


@pytest.fixture
def alice(home, rung, model, monkeypatch):
    """An account that may have two waiting runs, and use two devices at once."""
    monkeypatch.setenv("LATHE_MODEL_FOLDERS", str(model.parent))
    get_settings.cache_clear()
    with db.write() as session:
        accounts.add(session=session, name="alice", limits={"max_devices": 2, "max_waiting": 2})


def stored():
    with db.read() as session:
        return run_list.count(session=session), len(datasets.listing(session=session))


def problem_of(action):
    with pytest.raises(ConfigError) as caught:
        action()
    return caught.value.problem


def test_a_run_beyond_the_limit_of_waiting_runs_is_refused_before_and_at_start(alice, config, data):
    first, second = (submit.submit(config(seed=seed), owner="alice") for seed in (1, 2))
    data.write_text(data.read_text() * 2)
    (foreseen,) = checks.problems(settle(config(), owner="alice"))
    assert problem_of(lambda: submit.submit(config(), owner="alice")) == foreseen
    assert (foreseen.field, foreseen.value) == ("owner", "alice")
    assert foreseen.message == "may have 2 waiting at once (runs, evaluations, builds and models), and would have 3."
    assert "stop waiting ones, or ask an admin" in foreseen.fix
    assert stored() == (2, 1)
    submit.submit(config(), owner="local")
    requests.stop(first.id)
    submit.submit(config(), owner="alice")
    assert problem_of(lambda: requests.resume(first.id)) == foreseen
    requests.stop(second.id)
    requests.resume(first.id)


def test_a_repeated_request_is_not_refused(alice, config):
    key = Submission("a", "alice", "digest")
    run = submit.submit(config(), owner="alice", submission=key)
    submit.submit(config(), owner="alice")
    assert submit.submit(config(), owner="alice", submission=key).id == run.id


@pytest.mark.parametrize("kind", ["run", "sweep"])
def test_a_request_gets_what_its_key_queued_in_the_last_place_while_it_was_checked(alice, config, kind, monkeypatch):
    key = Submission("a", "alice", "digest")
    spec = parse_sweep({"config": config().model_dump(mode="json"), "include_unfit": True, "space": {"lora_r": [2, 4]}})
    first = []

    def ask():
        queue = submit.submit if kind == "run" else lifecycle.start
        return queue(config() if kind == "run" else spec, owner="alice", submission=key).id

    def check_later(module, name):
        check = getattr(module, name)

        def late(*given, **named):
            monkeypatch.setattr(module, name, check)
            if kind == "run":
                submit.submit(config(seed=1), owner="alice")
            first.append(ask())
            return check(*given, **named)

        monkeypatch.setattr(module, name, late)

    check_later(*((submit, "settle") if kind == "run" else (lifecycle, "make_plan")))
    assert [ask()] == first
    assert stored()[0] == 2


def test_a_sweep_is_queued_whole_or_not_at_all(alice, config):
    spec = {"config": config().model_dump(mode="json"), "include_unfit": True}
    problem = problem_of(lambda: lifecycle.start(parse_sweep(spec | {"space": {"lora_r": [2, 4, 8]}}), owner="alice"))
    assert problem.message == "may have 2 waiting at once (runs, evaluations, builds and models), and would have 3."
    assert stored() == (0, 0)
    two = parse_sweep(spec | {"space": {"lora_r": [2, 4]}})
    lifecycle.start(two, owner="alice")
    assert stored() == (2, 1)
    planned = plan.make_plan(two, owner="alice")
    assert planned.starting == [] and "would have 3" in planned.runs[0].reason


def test_a_run_that_needs_more_devices_than_its_owner_may_ever_use_is_refused(alice, config, monkeypatch):
    many = config(num_processes=4, strategy="ddp")
    assert checks.problems(settle(many, owner="alice")) == []  # a CPU is one device
    monkeypatch.setenv("LATHE_BROKER_URL", "redis://127.0.0.1:1/0")  # the workers may have GPUs
    get_settings.cache_clear()
    (problem,) = checks.problems(settle(many, owner="alice"))
    assert (problem.field, problem.value) == ("num_processes", 4)
    assert (problem.message, problem.fix) == (
        "needs 4 devices; alice may use 2 at once.",
        "Use at most 2, or ask an admin to raise the limit.",
    )
    assert problem_of(lambda: submit.submit(many, owner="alice")) == problem
    submit.submit(config(num_processes=2, strategy="ddp"), owner="alice")
    submit.submit(many)
