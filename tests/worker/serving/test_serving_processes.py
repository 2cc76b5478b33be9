"""Served models: their devices and processes, with a stand-in for the serving program that loads nothing."""

import contextlib
import os
import signal
import sys
import threading

import httpx
import psutil
import pytest
from machines import gpu, machine
from paths import PROGRAMS, ROOT
from patience import eventually
from played_run import PlayedRun
from run_files import checkpoint, result
from sqlmodel import select

from worker.engines.local import starting
from worker.evaluations import starting as evaluation_starting
from worker.machine import devices
from worker.machine.devices import Gpu
from worker.machine.process_identity import hostname, me
from worker.machine.processes import is_gone
from worker.serving import memory, models, processes, requests, turns
from worker.settings import get_settings
from worker.store import claims, database, evaluations, served_models
from worker.store.tables import DeviceLease, ServedModel, ServedState, Status
from worker.supervision import lease

pytestmark = pytest.mark.slow
STARTER = ROOT / "static" / "starter"
FIRST, SECOND = f"{hostname()}/cuda:0", f"{hostname()}/cuda:1"


def with_memory(monkeypatch, memory_bytes):
    """Gives the machine two GPUs with so much memory each."""
    gpus = tuple(Gpu(number, f"GPU-{number}", "H", memory_bytes, (9, 0)) for number in range(2))
    monkeypatch.setattr(devices, "all_gpus", lambda: gpus)


@pytest.fixture
def installation(home, monkeypatch):
    """A machine with two GPUs; every process that a test starts ends with it."""
    monkeypatch.setattr(
        processes, "program", lambda planned: [sys.executable, str(PROGRAMS / "stand_in_server.py"), planned.model]
    )
    with_memory(monkeypatch, 8)
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
    plain, cache = memory.needed(models.Plan(str(STARTER), "base", models={"copy": STARTER}))
    assert plain == 2 * file
    assert cache > 0
    (packed, _), (eight, _) = (memory.needed(models.Plan(str(STARTER), "b", quantization=q)) for q in ("4bit", "8bit"))
    assert packed < eight < file
    assert memory.needed(models.Plan("owner/not-here", "base")) == (0, 0)


def test_a_user_is_not_told_which_runs_of_others_use_the_devices(installation, monkeypatch):
    run = PlayedRun(num_processes=2, strategy="ddp").claim(FIRST, SECOND)
    monkeypatch.setenv("LATHE_VISIBILITY", "own")
    get_settings.cache_clear()
    others, own = ask(f"{run.id}:base", owner="bob"), ask(f"{run.id}:base", owner="local")
    processes.start_waiting()
    assert get(others).reason == "All devices are in use by a run of another user; it starts when one is free."
    assert run.id in get(own).reason


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
    monkeypatch.setattr(turns.overload, "here", lambda: "load average of 30 per core")
    found = ask(base())
    processes.start_waiting()
    assert "load average of 30 per core" in get(found).reason


def test_models_on_another_base_wait_for_their_turn_and_those_of_another_user_do_not(installation, monkeypatch):
    first, other = served(), served(owner="anna")
    second = ask(base())
    processes.start_waiting()
    assert (get(second).state, get(first.id).end_request) == (ServedState.WAITING, "")
    assert f"{first.models[0]} are served for at least 20 s" in get(second).reason
    tenure(monkeypatch, 0)
    eventually(lambda: (processes.start_waiting(), get(second).state is ServedState.READY)[1])
    assert get(first.id).reason == served_models.TURN
    assert get(other.id).state is ServedState.READY


def tenure(monkeypatch, seconds):
    monkeypatch.setenv("LATHE_SERVE_TENURE", str(seconds))
    get_settings.cache_clear()


def completing(address, file):
    """A request that is answered once the file exists, in a thread."""
    found = []

    def complete():
        with contextlib.suppress(httpx.HTTPError):  # its process was ended
            found.append(httpx.post(f"http://{address}/v1", json={"prompt": str(file)}, timeout=None))

    thread = threading.Thread(target=complete)
    thread.start()
    eventually(lambda: httpx.get(f"http://{address}/health").json()["pending"])
    return thread, found


@pytest.mark.parametrize("reason", [served_models.TURN, "Run 1 needs its device."])
def test_an_answer_in_progress_ends_before_its_model_is_replaced(installation, tmp_path, reason):
    ready = served()
    thread, answers = completing(ready.address, tmp_path / "go")
    end(ready.id, reason)
    eventually(lambda: httpx.post(f"http://{ready.address}/drain", json={}).is_success)
    assert psutil.pid_exists(ready.pid)
    (tmp_path / "go").touch()
    thread.join()
    assert answers[0].status_code == 200
    assert is_in(ServedState.ENDED, ready.id).reason == reason


def test_a_user_who_ends_models_does_not_wait_for_answers(installation, tmp_path):
    ready = served()
    thread, answers = completing(ready.address, tmp_path / "go")
    end(ready.id, served_models.ENDED_BY_USER)
    is_in(ServedState.ENDED, ready.id)
    thread.join()
    assert answers == []


def test_models_that_were_asked_and_are_idle_make_room_before_their_time(installation, tmp_path):
    ready = served()
    (tmp_path / "go").touch()
    httpx.post(f"http://{ready.address}/v1", json={"prompt": str(tmp_path / "go")})
    second = ask(base())
    eventually(lambda: (processes.start_waiting(), get(second).state is ServedState.READY)[1])
    assert get(ready.id).reason == served_models.TURN


def test_a_waiting_model_takes_the_device_of_another_user_s_after_its_time(installation, monkeypatch):
    run = PlayedRun().claim(FIRST)
    first = served(owner="anna")
    second = ask(base())
    processes.start_waiting()
    assert "models of other users are served for at least 20 s" in get(second).reason
    tenure(monkeypatch, 0)
    eventually(lambda: (processes.start_waiting(), get(second).state is ServedState.READY)[1])
    assert leased() == {FIRST: run.id, SECOND: second}
    assert get(first.id).reason == served_models.TURN


def adapters(*numbers):
    """A stopped run with checkpoints of adapters, and their names."""
    run = PlayedRun(model="models/tiny").claim("elsewhere/cpu")
    run.end(Status.STOPPED)
    for number in numbers:
        (checkpoint(run.id, number) / "adapter_config.json").write_text("{}")
    return [f"{run.id}:checkpoint-{number}" for number in numbers]


def test_adapters_of_several_runs_and_other_names_of_the_base_join_the_process_that_serves_their_base(
    installation, monkeypatch
):
    with_memory(monkeypatch, 2**20)
    ready = served()
    names = [*adapters(1, 2), *adapters(3), base()]
    for name in names:
        assert requests.ask_for_one(name, "local").id == ready.id
    eventually(lambda: set(names) <= set(get(ready.id).models))
    joined = get(ready.id)
    assert (joined.pid, joined.loads, joined.state) == (ready.pid, [], ServedState.READY)
    assert requests.ask(names[:2], "local").id == ready.id
    other = requests.ask_for_one(base("models/other"), "local")
    assert (other.id == ready.id, other.state) == (False, ServedState.WAITING)


def test_an_adapter_that_cannot_join_waits_for_a_process_of_its_own(installation):
    ready = served("models/refuses")
    run = PlayedRun(model="models/refuses").claim("elsewhere/cpu")
    run.end(Status.STOPPED)
    (checkpoint(run.id, 1) / "adapter_config.json").write_text("{}")
    name = f"{run.id}:checkpoint-1"
    assert requests.ask_for_one(name, "local").id == ready.id
    eventually(lambda: not get(ready.id).loads)
    own = requests.ask_for_one(name, "local")
    assert (own.models, own.state) == ([name], ServedState.WAITING)
    assert requests.ask([ready.models[0], name], "local").models == [ready.models[0], name]


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


def test_models_wait_in_the_order_in_which_they_were_asked_for_and_the_latest_is_found(home):
    first = ask("1:base")
    second = ask("2:base")
    with database.read() as session:
        latest = served_models.latest(session=session, owner="local")
        assert latest and latest.id == second
        assert session.get_one(ServedModel, first).state is ServedState.WAITING
        waiting = served_models.waiting(session=session)
        assert [served_models.position(session=session, served=one) for one in waiting] == [1, 2]
