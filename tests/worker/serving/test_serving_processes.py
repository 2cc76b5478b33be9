"""Served models: their devices and processes, with a stand-in for the serving program that loads nothing."""

import os
import signal
import sys

import psutil
import pytest
from machines import gpu, machine
from paths import PROGRAMS, ROOT
from patience import eventually
from played_run import PlayedRun
from run_files import result
from sqlmodel import select

from worker.engines.local import starting
from worker.evaluations import starting as evaluation_starting
from worker.machine import devices
from worker.machine.devices import Gpu
from worker.machine.process_identity import hostname, me
from worker.machine.processes import is_gone
from worker.serving import models, processes
from worker.settings import get_settings
from worker.store import claims, database, evaluations, served_models
from worker.store.tables import DeviceLease, ServedModel, ServedState, Status
from worker.supervision import lease

pytestmark = pytest.mark.slow
STARTER = ROOT / "static" / "starter"
FIRST, SECOND = f"{hostname()}/cuda:0", f"{hostname()}/cuda:1"


@pytest.fixture
def installation(home, monkeypatch):
    """A machine with two GPUs; every process that a test starts ends with it."""
    monkeypatch.setattr(
        processes, "program", lambda planned: [sys.executable, str(PROGRAMS / "stand_in_server.py"), planned.model]
    )
    monkeypatch.setattr(devices, "all_gpus", lambda: tuple(Gpu(n, f"GPU-{n}", "H", 8, (9, 0)) for n in range(2)))
    monkeypatch.setattr(starting, "_supervise", lambda run: None)
    monkeypatch.setattr(lease, "_ASK_SECONDS", 0.05)
    monkeypatch.setattr(processes, "_READY_SECONDS", 0.05)
    monkeypatch.setattr(processes, "_STARTING_SECONDS", 0.05)
    yield home
    for thread in list(processes._threads.values()):
        with database.read() as session:
            live = served_models.live(session=session)
        for one in live:
            end(one.id)
        thread.join()


def ask(*names, owner="local"):
    with database.write() as session:
        return served_models.create(session=session, models=list(names), owner=owner).id


def end(served_id, reason="The test ends."):
    with database.write() as session:
        served_models.request_end(session=session, served_id=served_id, reason=reason)


def get(served_id):
    with database.read() as session:
        return served_models.get(session=session, served_id=served_id)


def is_in(state, served_id):
    return eventually(lambda: (found := get(served_id)).state is state and found)


def leased():
    with database.read() as session:
        return {one.device: one.run_id or one.served_id for one in session.exec(select(DeviceLease))}


def base(model="models/tiny"):
    """The name of the base model of a run that does not wait."""
    run = PlayedRun(model=model).claim("elsewhere/cpu")
    run.end(Status.FAILED)
    return f"{run.id}:base"


def served(model="models/tiny", **options):
    """A ready model of a run's base."""
    found = ask(base(model), **options)
    processes.start_waiting()
    return is_in(ServedState.READY, found)


def test_a_killed_process_frees_its_device_and_says_which_signal(installation):
    ready = served()
    assert leased() == {SECOND: ready.id}
    os.kill(ready.pid, signal.SIGKILL)
    ended = is_in(ServedState.ENDED, ready.id)
    assert ended.reason == "It was killed by signal 9 (SIGKILL)."
    assert leased() == {}


def test_a_process_ends_when_another_worker_has_ended_its_row(installation):
    """Otherwise two would use the device."""
    ready = served()
    with database.write() as session:
        assert served_models.finish(session=session, served_id=ready.id, reason="Its worker on host ended.")
    eventually(lambda: not psutil.pid_exists(ready.pid))
    assert (get(ready.id).reason, leased()) == ("Its worker on host ended.", {})


def test_an_idle_process_and_one_that_fails_say_why_they_ended(installation):
    for model, words in (
        ("models/idle", "No request came for 15 min."),
        ("models/fails", "cannot be loaded. Give another."),
    ):
        found = ask(base(model))
        processes.start_waiting()
        assert words in is_in(ServedState.ENDED, found).reason
        assert leased() == {}


def test_the_command_of_vllm_reaches_the_program_whose_note_is_shown_and_whose_own_processes_end_with_it(
    installation, monkeypatch
):
    monkeypatch.setenv("LATHE_VLLM_COMMAND", "vllm")
    get_settings.cache_clear()
    ready = served("models/note")
    assert ready.reason == "transformers answers: vllm vllm"
    (child,) = psutil.Process(ready.pid).children()
    monkeypatch.delenv("LATHE_VLLM_COMMAND")
    get_settings.cache_clear()
    os.kill(ready.pid, signal.SIGKILL)
    is_in(ServedState.ENDED, ready.id)
    assert is_gone(child)


def test_a_queued_run_that_needs_the_device_ends_the_process_and_starts(installation):
    ready = served()
    run = PlayedRun(num_processes=2, strategy="ddp")
    assert starting.start_waiting() == []
    assert is_in(ServedState.ENDED, ready.id).reason == f"Run {run.id} needs its device."
    assert [one.id for one in starting.start_waiting()] == [run.id]
    assert leased() == {FIRST: run.id, SECOND: run.id}


def test_a_queued_run_on_two_machines_ends_what_the_other_one_serves(installation):
    there = [gpu("b", index) for index in range(2)]
    machine("b", devices=there)
    found = ask(base())
    with database.write() as session:
        assert served_models.claim(session=session, served_id=found, holder="b:1:1", device="b/cuda:1", lease_seconds=9)
    run = PlayedRun(num_processes=4, num_machines=2, strategy="ddp")
    assert starting.start_waiting() == []
    assert get(found).end_request == f"Run {run.id} needs its device."
    with database.write() as session:
        assert served_models.finish(session=session, served_id=found, reason="It was asked to.")
    assert [one.id for one in starting.start_waiting()] == [run.id]
    assert leased() == dict.fromkeys([FIRST, SECOND, "b/cuda:0", "b/cuda:1"], run.id)


def test_a_queued_run_on_two_machines_that_cannot_start_ends_nothing(installation):
    machine("b", devices=[gpu("b", 0)])
    ready = served()
    PlayedRun(num_processes=4, num_machines=2, strategy="ddp")
    assert starting.start_waiting() == []
    assert get(ready.id).end_request == ""


def test_a_queued_run_that_fits_beside_it_leaves_it(installation):
    ready = served()
    run = PlayedRun()
    assert [one.id for one in starting.start_waiting()] == [run.id]
    assert leased() == {FIRST: run.id, SECOND: ready.id}
    assert get(ready.id).end_request == ""


def test_a_waiting_evaluation_ends_the_process_and_takes_its_device(installation, monkeypatch):
    monkeypatch.setattr(evaluation_starting._queue, "supervise", lambda item: None)
    ready = served()
    PlayedRun().claim(FIRST)
    run = PlayedRun().claim("elsewhere/cpu")
    run.end(Status.FAILED)
    with database.write() as session:
        asked = evaluations.create(session=session, run_id=run.id, request={"source": "base"}, owner="local").id
    assert evaluation_starting.start_waiting() == []
    assert is_in(ServedState.ENDED, ready.id).reason == f"An evaluation of run {run.id} needs its device."
    assert [one.id for one in evaluation_starting.start_waiting()] == [asked]


def test_models_that_do_not_fit_are_refused_with_the_memory_they_need(installation, tmp_path):
    run = PlayedRun(model=str(STARTER)).claim("elsewhere/cpu")
    run.end(Status.FAILED)
    found = ask(f"{run.id}:base")
    processes.start_waiting()
    reason = is_in(ServedState.ENDED, found).reason
    assert f"and 8 bytes are free on {SECOND}. Choose fewer models" in reason
    assert leased() == {}


def test_the_memory_of_models_is_that_of_their_files_and_less_when_quantized():
    file = (STARTER / "model.safetensors").stat().st_size
    plain, cache = models.needed(models.Plan(str(STARTER), "base", models={"copy": STARTER}))
    assert plain == 2 * file
    assert cache > 0
    (packed, _), (eight, _) = (models.needed(models.Plan(str(STARTER), "b", quantization=q)) for q in ("4bit", "8bit"))
    assert packed < eight < file
    assert models.needed(models.Plan("owner/not-here", "base")) == (0, 0)


def test_without_a_free_device_it_waits_says_for_whom_and_starts_later(installation):
    run = PlayedRun(num_processes=2, strategy="ddp").claim(FIRST, SECOND)
    found = ask(f"{run.id}:base")
    processes.start_waiting()
    assert get(found).reason == f"All devices are in use by run {run.id}; it starts when one is free."
    run.end(Status.FAILED)
    processes.start_waiting()
    is_in(ServedState.READY, found)


def test_on_a_machine_without_a_gpu_it_leases_no_device(installation, monkeypatch):
    monkeypatch.setattr(devices, "all_gpus", tuple)
    ready = served()
    assert (ready.device, leased()) == (None, {})


def test_an_overloaded_machine_starts_none(installation, monkeypatch):
    monkeypatch.setattr(processes.overload, "here", lambda: "load average of 30 per core")
    found = ask(base())
    processes.start_waiting()
    assert "load average of 30 per core" in get(found).reason


def test_another_request_of_the_same_user_replaces_it(installation):
    first, other = served(), served(owner="anna")
    second = ask(base())
    assert is_in(ServedState.ENDED, first.id).reason == served_models.REPLACED
    eventually(lambda: (processes.start_waiting(), get(second).state is ServedState.READY)[1])
    assert get(other.id).state is ServedState.READY


def test_after_kill_9_of_the_worker_the_process_dies_and_the_next_worker_frees_the_device(installation):
    found = ask(base())
    worker = os.fork()
    if worker == 0:
        try:
            processes.start_waiting()
            signal.pause()
        finally:
            os._exit(1)
    try:
        ready = psutil.Process(is_in(ServedState.READY, found).pid)
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    eventually(lambda: is_gone(ready))
    assert leased() == {SECOND: found}
    processes.recover()
    assert get(found).reason == f"Its worker on {hostname()} ended."
    assert leased() == {}


def test_a_claim_is_for_one_worker_and_takes_the_device_too(home):
    found = ask("1:base")
    with database.write() as session:
        assert served_models.claim(session=session, served_id=found, holder=str(me()), device=FIRST, lease_seconds=9)
    with database.write() as session:
        assert not served_models.claim(
            session=session, served_id=found, holder="other:1:1", device=SECOND, lease_seconds=9
        )
    other = PlayedRun()
    with database.write() as session:
        assert claims.claim(session=session, run_id=other.id, owner=str(me()), devices=[FIRST], lease_seconds=9) is None


def test_models_on_different_bases_and_unknown_ones_are_refused_with_the_fix(home):
    first, second = PlayedRun(), PlayedRun(model="models/other")
    result(first.id)
    first.claim().end()

    def refusal(*names):
        with database.read() as session, pytest.raises(models.NotServed) as caught:
            models.plan(session=session, names=names)
        return str(caught.value)

    assert "Choose models on one base model." in refusal(first.id, f"{second.id}:base")
    assert "has no result on this machine: the run is queued." in refusal(second.id)
    assert "GET /v1/models lists them" in refusal("nothing")
    assert f"Choose one of {first.id}, {first.id}:base." in refusal(f"{first.id}:checkpoint-5")


def test_rows_of_ended_models_stay_and_the_latest_is_found(home):
    first = ask("1:base")
    second = ask("2:base")
    with database.read() as session:
        latest = served_models.latest(session=session, owner="local")
        assert latest and latest.id == second
        assert session.get_one(ServedModel, first).state is ServedState.ENDED
