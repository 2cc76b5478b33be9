"""The disk space of an account: what counts, and what is refused before and while it is stored."""

import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from played_run import PlayedRun
from sqlmodel import update

from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.errors import DataError
from worker import celery_app, disk_quota
from worker.archives import restore, run_archive
from worker.archives.restore import BadArchive
from worker.datasets import datasets
from worker.runs import checks, requests, submit
from worker.runs.settle import settle
from worker.settings import get_settings
from worker.store import accounts, run_list, runs
from worker.store import database as db
from worker.store.tables import Run, Status

LIMIT = 10_000


def limit(size):
    with db.write() as session:
        accounts.limit(session=session, name="alice", limits={"max_disk_bytes": size})


@pytest.fixture
def alice(home):
    """An account that may use LIMIT bytes."""
    with db.write() as session:
        accounts.add(session=session, name="alice", limits={"max_disk_bytes": LIMIT})


@pytest.fixture
def run_of_alice(alice):
    """A stopped run of alice with a folder of 6,000 bytes; its id."""
    run = PlayedRun("mine")
    with db.write() as session:
        runs.request_stop(session=session, run_id=run.id)
        session.exec(update(Run).values(owner="alice"))
    folder = get_settings().runs_dir / run.id
    folder.mkdir(parents=True)
    (folder / "output.log").write_bytes(b"x" * 6_000)
    return run.id


def rows(path, size):
    """A file of exactly `size` bytes that is a data set; its content is that of its name."""
    line = json.dumps({"prompt": path.stem, "completion": ""})
    path.write_text("".join(f"{json.dumps({'prompt': path.stem, 'completion': 'x' * 50})}\n" for _ in range(5)))
    path.write_text(
        path.read_text() + line[:-2] + "x" * (size - path.stat().st_size - len(line) - 1) + line[-2:] + "\n"
    )
    assert path.stat().st_size == size
    return path


def left_behind():
    settings = get_settings()
    return [path.name for folder in (settings.datasets_dir, settings.runs_dir) for path in folder.iterdir()]


def test_the_folders_of_runs_and_the_data_sets_of_an_account_count(run_of_alice, tmp_path):
    datasets.add_file(path=rows(tmp_path / "a.jsonl", 1_000), name="a.jsonl", owner="alice")
    datasets.add_file(path=rows(tmp_path / "b.jsonl", 2_000), name="b.jsonl", owner="bob")
    assert disk_quota.measured("alice").used == 7_000
    assert disk_quota.measured("alice").refusal(3_000) == ""
    assert disk_quota.measured("alice").refusal(3_001) == (
        "needs 2.9 KiB; alice uses 6.8 KiB of the 9.8 KiB that alice may use on disk."
    )


def test_an_account_without_a_limit_is_not_measured(run_of_alice):
    limit(None)
    assert disk_quota.measured("alice") == disk_quota.DiskQuota("alice")
    assert disk_quota.measured("alice").refusal(2**60) == disk_quota.measured("local").refusal(2**60) == ""


def test_a_file_that_does_not_fit_is_refused_and_leaves_nothing(run_of_alice, tmp_path):
    before = left_behind()
    with pytest.raises(DataError) as caught:
        datasets.add_file(path=rows(tmp_path / "a.jsonl", 4_001), name="a.jsonl", owner="alice")
    assert "alice uses 5.9 KiB of the 9.8 KiB" in caught.value.message and "ask an admin" in caught.value.fix
    assert left_behind() == before
    datasets.add_file(path=rows(tmp_path / "b.jsonl", 4_000), name="b.jsonl", owner="alice")


def test_files_that_grow_when_they_are_joined_are_refused_while_they_are_stored(run_of_alice, tmp_path):
    paths = [tmp_path / "a.csv", tmp_path / "b.csv"]
    for path in paths:
        path.write_text("prompt,completion\n" + "a,b\n" * 100)  # each row becomes longer as JSON
    before = left_behind()
    with pytest.raises(DataError, match="alice may use on disk"):
        datasets.add_many(paths=paths, names=["a.csv", "b.csv"], owner="alice")
    assert left_behind() == before


def test_of_two_uploads_at_once_that_fit_alone_one_is_refused(run_of_alice, tmp_path):
    paths = [rows(tmp_path / f"{name}.jsonl", 3_000) for name in "ab"]

    def add(path):
        try:
            return datasets.add_file(path=path, name=path.name, owner="alice").name
        except DataError as error:
            return error.message

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(add, paths))
    assert sorted("may use on disk" in one for one in results) == [False, True]
    assert disk_quota.measured("alice").used == 9_000


def test_what_was_stored_meanwhile_counts(run_of_alice, tmp_path):
    measured = disk_quota.measured("alice")
    datasets.add_file(path=rows(tmp_path / "a.jsonl", 1_000), name="a.jsonl", owner="alice")
    later = PlayedRun("later").id
    (get_settings().runs_dir / later).mkdir()
    (get_settings().runs_dir / later / "output.log").write_bytes(b"x" * 500)
    with db.write() as session:
        session.exec(update(Run).values(owner="alice"))
        assert measured.again(session).used == 7_500


def test_an_archive_that_does_not_fit_is_refused_and_leaves_nothing(run_of_alice, tmp_path):
    run = PlayedRun("other").claim().end()
    result = get_settings().runs_dir / run.id / "adapter"
    result.mkdir(parents=True)
    (result / "adapter_model.safetensors").write_bytes(b"x" * 3_000)
    packed = tmp_path / "run.lathe.zip"
    packed.write_bytes(b"".join(run_archive.packed(run.id)))
    before = left_behind()
    for size in (
        7_000,
        11_000,
    ):  # refused by the sizes in the archive, and by what it becomes: the result is packed again
        limit(size)
        with pytest.raises(BadArchive, match="alice may use on disk"):
            restore.restore(packed, owner="alice")
        assert left_behind() == before
    limit(30_000)
    assert restore.restore(packed, owner="alice").owner == "alice"


def test_a_run_whose_files_may_not_fit_is_refused_before_and_at_start(run_of_alice, tmp_path, monkeypatch):
    monkeypatch.setattr(celery_app, "notify", lambda run_id: True)
    data = datasets.add_file(path=rows(tmp_path / "a.jsonl", 1_000), name="a.jsonl", owner="alice").id
    config = RunConfig(model="static/starter", data=data, method="full")
    (problem,) = checks.problems(settle(config, owner="alice"))
    assert (problem.field, problem.value) == ("save_total_limit", config.save_total_limit)
    assert "alice uses 6.8 KiB of the 9.8 KiB that alice may use on disk." in problem.message
    with pytest.raises(ConfigError) as caught:
        submit.submit(config, owner="alice")
    assert caught.value.problems == [problem]
    limit(100_000_000)
    assert submit.submit(config, owner="alice").status is Status.QUEUED


def test_a_small_run_fits_in_a_small_quota(run_of_alice, tmp_path):
    data = datasets.add_file(path=rows(tmp_path / "a.jsonl", 1_000), name="a.jsonl", owner="alice").id
    limit(50_000_000)
    assert checks.problems(settle(RunConfig(model="static/starter", data=data, max_steps=1), owner="alice")) == []


def test_a_run_is_not_resumed_while_its_owner_uses_more_than_allowed(run_of_alice, tmp_path, monkeypatch):
    monkeypatch.setattr(celery_app, "notify", lambda run_id: True)
    data = datasets.add_file(path=rows(tmp_path / "a.jsonl", 1_000), name="a.jsonl", owner="alice").id
    with db.write() as session:
        run = runs.get(session=session, run_id=run_of_alice)
        run.config = run.config | {"model": "org/tiny", "data": data}
    limit(5_000)
    with pytest.raises(ConfigError, match=r"alice uses 6\.8 KiB of the 4\.9 KiB"):
        requests.resume(run_of_alice)
    with db.read() as session:
        assert run_list.listing(session=session, query=run_list.Query(Status.QUEUED)) == []
    limit(7_000)
    assert requests.resume(run_of_alice).status is Status.QUEUED


def test_many_runs_that_are_checked_together_measure_once(run_of_alice):
    with disk_quota.measured_once():
        first = disk_quota.measured("alice")
        assert disk_quota.measured("alice") is first
    assert disk_quota.measured("alice") is not first
