"""Forms of a result that are made on request: refused, queued, lost, stopped, built, and kept in the object store."""

import contextlib
import json
import os
import shutil
import signal
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import psutil
import pytest
import torch
from patience import eventually
from played_run import SUMMARY, PlayedRun, model_folder
from run_files import checkpoint, result
from safetensors.torch import save_file
from subtest_table import table
from supervised import started  # noqa: F401
from tiny import make_model

from training.config.fields import ConfigError
from training.errors import UserError
from training.run_folder import checkpoints
from training.run_folder.paths import RUN_VARIABLE
from worker import builds
from worker.file_store import object_store
from worker.machine import overload, process_identity, processes
from worker.machine.process_identity import Identity
from worker.machine.programs import Program
from worker.results import fetching, results
from worker.results.results import NoResult
from worker.settings import get_settings
from worker.store import accounts, database, runs
from worker.store import builds as store
from worker.store.tables import Build, Run, Status
from worker.store.work import BUILD
from worker.supervision.queued_work import WorkState, WorkSupervisor


@pytest.fixture(autouse=True)
def calm(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overload, "here", lambda: "")


A_PROGRAM = Program("a_program", unconfined="a test writes it")


def played(status: Status = Status.FINISHED, **settings: Any) -> PlayedRun:
    """An ended run with its files, an adapter if it has finished."""
    run = PlayedRun("sums", **settings).claim("elsewhere/cpu")
    run.end(status, summary=SUMMARY if status is Status.FINISHED else None)
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(run.row.config))
    if status is Status.FINISHED:
        result(run.id)
    return run


def get(item: Build) -> Build:
    with database.read() as session:
        return store.get(session=session, run_id=item.run_id, form=item.form)


@table(
    ("method", "task", "form", "message"),
    [
        ("lora", "sft", "zip", "is not a form of a result"),
        ("lora", "sft", "checkpoint-7", "is not kept"),
        ("lora", "sft", "checkpoint", "is not a form of a result"),
        ("full", "sft", "merged", "there is nothing to merge"),
        ("full", "sft", "gguf-adapter", "there is no adapter"),
        ("prompt_tuning", "sft", "merged", "no weights that can be merged"),
        ("prompt_tuning", "sft", "gguf-Q8_0", "no weights that can be merged"),
        ("loha", "sft", "gguf-adapter", "is no kind of LoRA"),
        ("lora", "classification", "gguf", "generates no text"),
    ],
)
def test_a_form_that_a_run_cannot_have_is_refused(method: str, task: str, form: str, message: str) -> None:
    with pytest.raises(NoResult, match=message):
        builds.submit(played(method=method, task=task).id, form)


def test_a_stopped_run_has_the_adapters_of_its_checkpoints_only() -> None:
    run = played(Status.STOPPED)
    checkpoint(run.id, 2)
    checkpoint(run.id, 4)
    with pytest.raises(NoResult, match="it has no result"):
        builds.submit(run.id, "merged")
    assert builds.submit(run.id, "checkpoint").form == "checkpoint-4"
    assert builds.submit(run.id, "checkpoint-2").form == "checkpoint-2"
    (checkpoints.sealed(get_settings().runs_dir / run.id)[1] / "manifest.json").unlink()
    with pytest.raises(NoResult, match=r"is not kept, or was not saved completely. Choose one of checkpoint-4"):
        builds.submit(run.id, "checkpoint-2")


def test_a_run_that_trains_is_refused() -> None:
    run = PlayedRun().claim()
    with pytest.raises(NoResult, match="its result is saved at the end"):
        builds.submit(run.id, "checkpoint-2")


def test_what_the_disk_or_the_quota_has_no_space_for_is_refused_before_it_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LATHE_MODEL_FOLDERS", str(tmp_path))
    get_settings.cache_clear()
    run = played(model=str(model_folder(tmp_path / "model")), data="0" * 16)
    with database.write() as session:
        accounts.add(session=session, name="alice", limits={"max_disk_bytes": 10})
        session.get_one(Run, run.id).owner = "alice"
    with pytest.raises(ConfigError, match="that alice may use on disk"):
        builds.submit(run.id, "merged")
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr("worker.builds.shutil.disk_usage", lambda _: usage._replace(free=1))
    with pytest.raises(ConfigError, match=r"merged.*needs about .* has 1 byte free"):
        builds.submit(run.id, "merged")


def test_a_form_is_built_once_however_often_it_is_asked_for() -> None:
    run = played()
    first, again = builds.submit(run.id, "merged"), builds.submit(run.id, "merged")
    assert first.id == again.id and builds.submit(run.id, "gguf").id != first.id
    with database.write() as session:
        store.request_stop(session=session, run_id=run.id, form="merged")
    assert get(first).status is Status.STOPPED
    with database.write() as session, pytest.raises(store.BuildEnded, match="is stopped"):
        store.request_stop(session=session, run_id=run.id, form="merged")
    assert builds.submit(run.id, "merged").status is Status.QUEUED


def test_a_worker_starts_one_build_and_only_of_runs_whose_files_it_has(
    monkeypatch: pytest.MonkeyPatch,
    started: None,  # noqa: F811
) -> None:
    away, here, next_one = played(), played(), played()
    items = []
    for run in (away, here, next_one):
        items.append(builds.submit(run.id, "merged"))
        time.sleep(0.002)  # SQLite's clock has milliseconds, by which builds queue
    shutil.rmtree(get_settings().runs_dir / away.id)
    assert [item.id for item in builds.start_waiting()] == [items[1].id]
    assert builds.start_waiting() == []
    ended = eventually(lambda: (one := get(items[1])).status.ended and one, every=0.2)
    assert ended.status is Status.FAILED  # the starter's adapter is no adapter
    assert "the result could not be created" in ended.error["message"]
    assert [item.status for item in map(get, items)] == [Status.QUEUED, Status.FAILED, Status.QUEUED]
    assert [item.id for item in eventually(builds.start_waiting)] == [items[2].id]


def test_a_build_that_is_lost_too_often_fails_with_the_reason() -> None:
    item = builds.submit(played().id, "merged")
    dead = Identity.parse(str(Identity.of(os.getpid())))
    assert dead
    holder = f"{dead.host}:{2**22 - 1}:{dead.start}"
    for attempt in (1, 2, 3):
        with database.write() as session:
            assert BUILD.take(session, Build.id == item.id, holder=holder, lease_seconds=60)  # type: ignore[arg-type]
        assert [one.id for one in builds.recover()] == [item.id]
        assert get(item).status is (Status.QUEUED if attempt < 3 else Status.FAILED)
    error = get(item).error
    assert error and "It was tried 3 times." in error["message"]


def made(monkeypatch: pytest.MonkeyPatch, then: Callable[[], object]) -> None:
    """Programs write their file, and then this happens."""

    def run(_builder: results.Builder, _module: str, *arguments: str) -> None:
        Path(arguments[1]).write_bytes(b"form")
        then()

    monkeypatch.setattr(results.Builder, "_run", run)


def test_a_form_of_a_run_that_is_resumed_meanwhile_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    run = PlayedRun("sums").claim("elsewhere/cpu")
    run.end(Status.DIVERGED, summary=SUMMARY)
    result(run.id)

    def resume() -> None:
        with database.write() as session:
            runs.resume(session=session, run_id=run.id)

    made(monkeypatch, resume)
    with pytest.raises(NoResult, match="was resumed while merged was made"):
        results.Builder(run.row).merged()
    assert {path.name for path in (get_settings().runs_dir / run.id).iterdir()} == {".building", "adapter"}


def test_the_notes_of_a_program_are_told_and_what_libraries_print_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_program.py").write_text(
        "import json, os\n"
        "print('[WARNING] Setting accelerator to CPU.')\n"
        "print(json.dumps({'phase': os.environ['LATHE_SUPERVISOR'], 'done': 1, 'total': 2}))\n"
        "print(json.dumps({'note': 'Its context is 64 tokens.'}))\n"
    )
    monkeypatch.setattr(results, "environment", lambda: {"PYTHONPATH": str(tmp_path)})
    told: list[Any] = []
    builder = results.Builder(played().row, tell=told.append, progress=lambda *now: told.append(now))
    builder._run(A_PROGRAM)
    # It ends with this process, even if this is killed before the program has asked for that.
    assert told == [("loading", 0, 0), (str(os.getpid()), 1, 2), "Its context is 64 tokens."]


@pytest.fixture
def within_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A supervisor may run in this process, whose children belong to other tests."""
    monkeypatch.setattr(processes, "kill_descendants", lambda: None)
    monkeypatch.setattr(processes, "set_child_subreaper", lambda: None)


@pytest.mark.usefixtures("within_this_process")
@pytest.mark.parametrize(("by_system", "limit", "status"), [(0, 3, "queued"), (0, 1, "failed"), (1, 3, "failed")])
def test_a_build_whose_program_is_killed_is_queued_again_unless_memory_was_full(
    by_system: int, limit: int, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a_program.py").write_text("import os\nos.kill(os.getpid(), 9)\n")
    monkeypatch.setattr(results, "environment", lambda: {"PYTHONPATH": str(tmp_path)})
    monkeypatch.setenv("LATHE_MAX_ATTEMPTS", str(limit))
    get_settings.cache_clear()
    counts = iter((0, by_system))
    monkeypatch.setattr(processes, "memory_kills", lambda: next(counts))
    item = builds.submit(played().id, "merged")
    with database.write() as session:
        holder = str(process_identity.me())
        assert BUILD.take(session, Build.id == item.id, holder=holder, lease_seconds=60)  # type: ignore[arg-type]

    def work(_item: Build, run: Run, _state: WorkState, _mark: str) -> dict[str, Any]:
        return {"notes": str(results.Builder(run)._run(A_PROGRAM))}

    assert WorkSupervisor(BUILD, (item.id, 1), work).run() == 0
    ended = get(item)
    assert ended.status.value == status
    told = ended.reason if ended.error is None else ended.error["message"]
    assert ("out of memory" in told) == bool(by_system)
    assert "killed" in told


@pytest.mark.usefixtures("within_this_process")
@pytest.mark.parametrize(("limit", "status"), [(2, "queued"), (1, "failed")])
def test_a_build_that_finds_the_database_locked_is_queued_again(
    monkeypatch: pytest.MonkeyPatch, limit: int, status: str
) -> None:
    monkeypatch.setenv("LATHE_MAX_ATTEMPTS", str(limit))
    get_settings.cache_clear()
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 10)
    database.dispose()
    item = builds.submit(played().id, "merged")
    with database.write() as session:
        holder = str(process_identity.me())
        assert BUILD.take(session, Build.id == item.id, holder=holder, lease_seconds=60)  # type: ignore[arg-type]
    file = database.engine().url.database

    def work(_item: Build, _run: Run, _state: WorkState, _mark: str) -> dict[str, Any]:
        with contextlib.closing(sqlite3.connect(str(file), isolation_level=None)) as other:
            other.execute("BEGIN EXCLUSIVE")
            with database.write() as session:
                session.connection()
        return {}

    assert WorkSupervisor(BUILD, (item.id, 1), work).run() == 0
    ended = get(item)
    assert ended.status.value == status
    assert (ended.reason == "The database was unreachable.") == (status == "queued")
    assert ended.error is None or "database is locked" in ended.error["message"]


def test_a_program_of_a_cancelled_build_writes_nothing_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = tmp_path / "written"
    (tmp_path / "a_program.py").write_text(
        "import sys, time\n"
        'print(\'{"phase": "merging", "done": 1, "total": 2}\', flush=True)\n'
        "time.sleep(10)\n"
        "open(sys.argv[1], 'w')\n"
    )
    monkeypatch.setattr(results, "environment", lambda: {"PYTHONPATH": str(tmp_path)})

    def stop(phase: str, *_: int) -> None:
        if phase == "merging":
            raise NoResult("form", "merged", "is not built, as requested.", "")

    with pytest.raises(NoResult, match="as requested"):
        results.Builder(played().row, progress=stop)._run(A_PROGRAM, str(written))
    assert not written.exists()  # the program has ended: `_run` waits for it


def test_what_a_killed_build_has_left_is_deleted_by_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    run = played()
    run_dir = get_settings().runs_dir / run.id
    (run_dir / ".unfinished").mkdir()
    (run_dir / ".unfinished/merged.partial").touch()
    made(monkeypatch, lambda: None)
    assert results.Builder(run.row).build("gguf-adapter").read_bytes() == b"form"
    assert not (run_dir / ".unfinished").exists()


def test_a_model_that_llama_cpp_cannot_compute_is_refused_in_the_program_s_own_words_with_its_own_fix() -> None:
    run = played(method="full")
    folder = get_settings().runs_dir / run.id / "model"
    shutil.rmtree(folder.with_name("adapter"))
    folder.mkdir()
    gemma = {"model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 7, "head_dim": 8}
    (folder / "config.json").write_text(json.dumps(gemma))
    (folder / "model.safetensors").touch()
    with pytest.raises(NoResult) as caught:
        results.Builder(run.row).build("gguf")
    assert caught.value.message.startswith(
        "the result could not be created: gguf (given: 'Gemma2ForCausalLM'): scales its"
    )
    assert "convert_hf_to_gguf.py" in caught.value.fix and "Warning" not in str(caught.value)


def test_a_build_that_is_cancelled_while_it_packs_leaves_nothing() -> None:
    run = played()
    run_dir = get_settings().runs_dir / run.id
    (run_dir / "merged").mkdir()
    for name in ("config.json", "model.safetensors"):
        (run_dir / "merged" / name).write_bytes(b"whole")
    state = WorkState()

    def stop(phase: str, *_: int) -> None:
        state.stopping.set()

    state.progress = stop  # type: ignore[method-assign]
    with pytest.raises(NoResult, match="is not built, as requested"):
        builds._build(builds.submit(run.id, "merged"), run.row, state, "mark")
    assert {path.name for path in run_dir.glob("*merged*")} == {"merged"}
    assert not (run_dir / ".unfinished").exists()


@pytest.fixture
def stopped(tmp_path: Path) -> PlayedRun:
    """A stopped run of a tiny model with a checkpoint of an adapter."""
    model = make_model(tmp_path / "model")
    run = played(Status.STOPPED, model=str(model))
    folder = checkpoint(run.id, 4)
    (folder / "model.safetensors").unlink()
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2}))
    save_file({"weight": torch.zeros(2, 2)}, folder / "adapter_model.safetensors")
    checkpoints.seal(folder)
    return run


def supervisor(item: Build) -> psutil.Process | None:
    """The process that has taken the build over."""
    holder = Identity.parse(get(item).holder)
    return psutil.Process(holder.pid) if holder and holder.pid != os.getpid() else None


@pytest.mark.slow
@pytest.mark.usefixtures("started")
class TestSupervised:
    def test_a_build_survives_its_supervisor_and_gives_the_adapter_of_a_checkpoint(self, stopped: PlayedRun) -> None:
        item = builds.submit(stopped.id, "checkpoint")
        builds.start_waiting()
        process = eventually(lambda: supervisor(item))
        program = eventually(lambda: processes.marked(RUN_VARIABLE, f"build-{item.id}"), every=0.2)
        process.send_signal(signal.SIGKILL)
        eventually(lambda: all(processes.is_gone(one) for one in program))
        run_dir = get_settings().runs_dir / stopped.id
        assert not (run_dir / "checkpoint-4.zip").exists()
        assert [one.id for one in eventually(builds.recover)] == [item.id]
        assert (get(item).status, get(item).attempt) == (Status.QUEUED, 1)
        assert eventually(builds.start_waiting)
        ended = eventually(lambda: (one := get(item)).status.ended and one, every=0.2)
        assert (ended.status, ended.attempt, ended.error) == (Status.FINISHED, 2, None)
        with ZipFile(run_dir / "checkpoint-4.zip") as packed:
            weights = packed.read("adapter_model.safetensors")
            assert {"adapter_config.json", "tokenizer.json"} <= set(packed.namelist())
        assert weights == (run_dir / "checkpoints/checkpoint-4/adapter_model.safetensors").read_bytes()

    def test_a_running_build_is_cancelled_and_leaves_nothing(self, stopped: PlayedRun) -> None:
        item = builds.submit(stopped.id, "checkpoint")
        builds.start_waiting()
        eventually(lambda: processes.marked(RUN_VARIABLE, f"build-{item.id}"), every=0.2)
        with database.write() as session:
            store.request_stop(session=session, run_id=stopped.id, form=item.form)
        assert eventually(lambda: (one := get(item)).status.ended and one, every=0.2).status is Status.STOPPED
        assert processes.marked(RUN_VARIABLE, f"build-{item.id}") == []
        left = {path.name for path in (get_settings().runs_dir / stopped.id).iterdir()}
        assert left == {".building", "builds", "checkpoints", "config.json"}


@pytest.fixture
def file_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("LATHE_STORE_URL", f"file://{tmp_path / 'store'}")
    get_settings.cache_clear()
    yield
    object_store._opened.cache_clear()


def test_what_one_machine_has_built_another_one_downloads(file_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    run = played().row
    run_dir = get_settings().runs_dir / run.id
    (run_dir / "merged").mkdir()
    (run_dir / "merged/model.safetensors").write_bytes(b"whole")
    for form, content in (("merged", b""), ("gguf-Q8_0", b"eight bits"), ("checkpoint-2", b"a zip")):
        name = results.file_of(form)
        (run_dir / name).write_bytes(content)
        fetching.keep(run, run_dir / name)
    shutil.rmtree(run_dir)
    for name, content in (("model-Q8_0.gguf", b"eight bits"), ("checkpoint-2.zip", b"a zip")):
        fetching.fetch_built(run, name)
        assert (run_dir / name).read_bytes() == content
    fetching.fetch_built(run, "merged.zip")
    assert ZipFile(run_dir / "merged.zip").read("model.safetensors") == b"whole"
    fetching.fetch_built(run, "model.gguf")  # the store does not have it
    assert not (run_dir / "model.gguf").exists()


def test_a_form_in_the_store_is_downloaded_once_by_requests_at_the_same_time(
    file_store: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, pulled = played().row, []
    other = threading.Thread(target=fetching.fetch_built, args=(run, "model.gguf"))

    def pull(_: object, run_dir: Path, name: str) -> bool:
        pulled.append(name)
        if len(pulled) == 1:
            other.start()
            other.join(0.2)  # it waits for this download
            (run_dir / name).write_bytes(b"whole")
        return True

    monkeypatch.setattr("worker.file_store.run_files.pull_built", pull)
    fetching.fetch_built(run, "model.gguf")
    other.join()
    assert pulled == ["model.gguf"]


def test_nothing_built_is_downloaded_while_the_run_trains_again(file_store: None) -> None:
    run = played(Status.DIVERGED).row
    run_dir = get_settings().runs_dir / run.id
    (run_dir / "model.gguf").write_bytes(b"of the earlier result")
    fetching.keep(run, run_dir / "model.gguf")
    (run_dir / "model.gguf").unlink()
    with database.write() as session:
        resumed = runs.resume(session=session, run_id=run.id)
    fetching.fetch_built(resumed, "model.gguf")
    assert not (run_dir / "model.gguf").exists()


def test_a_checkpoint_that_is_only_in_the_store_is_downloaded_to_be_built(file_store: None) -> None:
    run = played(Status.STOPPED)
    folder = checkpoint(run.id, 2)
    store_key = f"runs/{run.id}/checkpoints/checkpoint-2"
    configured = object_store.configured()
    assert configured
    for file in folder.iterdir():
        configured.upload(file, f"{store_key}/{file.name}")
    (folder / "manifest.json").unlink()  # as if a download had been interrupted
    (folder / "model.safetensors").unlink()
    fetching.fetch_checkpoint(run.row, "checkpoint-2")
    assert checkpoints.fault(folder) == ""


def test_an_object_store_that_does_not_answer_is_named(file_store: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.file_store.run_files.push_built", lambda *_: 1 / 0)
    with pytest.raises(UserError, match="could not be copied from or to the object store"):
        fetching.keep(played().row, Path("model.gguf"))
