"""Backups of a running installation, restored into empty folders and databases."""

import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import Result
from commands import lathe
from environment import use
from paths import ROOT
from played_run import PlayedRun
from prepared import Prepared, prepared_installation  # noqa: F401 - a fixture
from programs.stand_in import GO_FILE
from sqlmodel import SQLModel, select
from supervised import get, queue_run, supervise

from training.files import sha256
from training.run_folder import checkpoints
from training.run_folder.paths import checkpoint_dir
from worker.backups import contents, making, restoring
from worker.settings import get_settings
from worker.store import database, history, schema
from worker.store.tables import Run, Status

TRAINS = {"steps": 8, "save_at": 2, "hold": 5}


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Switches to another, empty data folder with SQLite, once it is asked for by `move`."""
    yield tmp_path / "elsewhere"
    database.dispose()
    get_settings.cache_clear()


def move(monkeypatch: pytest.MonkeyPatch, folder: Path, **settings: str) -> None:
    database.dispose()
    use(monkeypatch, DATA_DIR=str(folder), **settings)


def rows() -> dict[str, list[tuple[object, ...]]]:
    """All rows of all tables that a backup keeps, in an order of their own."""
    with database.engine().connect() as connection:
        tables = [table for table in SQLModel.metadata.sorted_tables if table.name not in ("machine", "device_lease")]
        return {table.name: sorted(connection.execute(select(table)).all(), key=repr) for table in tables}


def files(folder: Path) -> dict[str, str]:
    found = [path for name in ("runs", "datasets") for path in (folder / name).rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): sha256(path) for path in found if not path.name.startswith(".")}


def saved(run_dir: Path, step: int) -> Path:
    """A complete checkpoint."""
    checkpoint = checkpoint_dir(run_dir, step)
    (checkpoint / "shards").mkdir(parents=True)
    (checkpoint / "shards" / "0.pt").write_bytes(bytes(100_000))
    checkpoints.seal(checkpoint)
    return checkpoint


def done(result: Result) -> str:
    assert result.exit_code == 0, result.output
    return result.output


def refused(result: Result) -> str:
    assert result.exit_code == 1, result.output
    return result.output


def test_an_installation_is_restored_with_all_rows_and_files(
    prepared: Prepared, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, before, kept = tmp_path / "lathe.tar", rows(), files(prepared.home)
    (prepared.home / "token").write_text("t" * 40)
    done(lathe("backup", file))
    assert file.stat().st_mode & 0o777 == 0o600
    assert "exists already" in refused(lathe("backup", file))
    assert "is not empty" in refused(lathe("restore-backup", file))
    move(monkeypatch, elsewhere)
    done(lathe("restore-backup", file))
    assert files(elsewhere) == kept and not (elsewhere / "token").exists()
    after = rows()
    assert {name for name in before if before[name] != after[name]} <= {"served_model", "build", "evaluation"}
    done(lathe("export", prepared.finished, "--to", tmp_path / "taken"))
    assert prepared.dataset in done(lathe("dataset", "list"))
    assert sorted(path.name for path in elsewhere.glob(".*")) == []


def test_a_run_that_trains_meanwhile_continues_from_its_checkpoint(
    home: Path, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, file = queue_run(**TRAINS), tmp_path / "lathe.tar"
    with supervise(run_id) as it:
        it.until(lambda run: run.step == 4)
        saved(it.run_dir, 2)
        (checkpoint_dir(it.run_dir, 4)).mkdir()  # not complete yet
        done(lathe("backup", file))
        assert it.run.status is Status.RUNNING  # the backup did not disturb it
        move(monkeypatch, elsewhere)
        assert "1 run will continue" in done(lathe("restore-backup", file))
        restored = get(run_id)
        assert (restored.status, restored.step, restored.holder) == (Status.QUEUED, 4, None)
        newest, rejected = checkpoints.newest_checkpoint(elsewhere / "runs" / run_id)
        assert newest and newest.name == "checkpoint-2" and rejected == []
        move(monkeypatch, home)
        it.stopped()
    move(monkeypatch, elsewhere)
    (elsewhere / "runs" / run_id / GO_FILE).touch()
    with supervise(run_id) as it:
        assert it.wait().status is Status.FINISHED
    with database.read() as session:
        events = history.events(session=session, run_id=run_id)
    assert any("Restored from a backup of" in event.message for event in events)
    assert [event.step for event in events if event.kind == "resumed"] == [2]


def test_a_checkpoint_that_the_run_deletes_meanwhile_is_in_the_backup(
    home: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id, file = queue_run(steps=3), io.BytesIO()
    old, new = (saved(get_settings().runs_dir / run_id, step) for step in (2, 4))

    def delete(_done: int, _total: int, what: str) -> None:
        for checkpoint in (old, new):
            if what.endswith(checkpoint.name) and checkpoint.exists():
                checkpoints.discard(checkpoint)

    making.make(file, secrets=False, progress=delete)
    assert not old.exists() and not new.exists()
    file.seek(0)
    move(monkeypatch, elsewhere)
    assert restoring.restore(file, "stream", progress=lambda *_: None) == 0
    restored = checkpoints.sealed(elsewhere / "runs" / run_id)
    assert [(path.name, checkpoints.fault(path)) for path in restored] == [("checkpoint-4", ""), ("checkpoint-2", "")]


def test_a_file_whose_last_line_has_no_end_is_whole_unless_its_run_writes_it(home: Path, tmp_path: Path) -> None:
    rows_file = tmp_path / "räws 1.jsonl"
    rows_file.write_text('{"prompt": "a", "completion": "b"}\n{"prompt": "c", "completion": "d"}')
    done(lathe("dataset", "add", rows_file))
    ended = PlayedRun().claim().end()
    running = PlayedRun().claim()
    for run in (ended, running):
        folder = get_settings().runs_dir / run.id
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "output.log").write_text("whole\nbegun")
    file = io.BytesIO()
    making.make(file, secrets=False, progress=lambda *_: None)
    file.seek(0)
    with tarfile.open(fileobj=file) as tar:
        sizes = {member.name: member.size for member in tar}
    (dataset,) = (get_settings().data_dir / "datasets").glob("*.jsonl")
    assert sizes[f"datasets/{dataset.name}"] == dataset.stat().st_size
    assert sizes[f"runs/{ended.id}/output.log"] == len("whole\nbegun")
    assert sizes[f"runs/{running.id}/output.log"] == len("whole\n")


@pytest.mark.parametrize("back", ["sqlite", "postgresql"])
def test_a_backup_of_postgresql_can_be_restored_into_either_database(
    prepared: Prepared, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, postgresql_url: str, back: str
) -> None:
    first, second = tmp_path / "first.tar", tmp_path / "second.tar"
    done(lathe("backup", first))
    move(monkeypatch, elsewhere / "pg", DATABASE_URL=postgresql_url)
    done(lathe("restore-backup", first))
    try:
        before = rows()
        if back == "sqlite":
            done(lathe("backup", second))
            move(monkeypatch, elsewhere / "sqlite")
            done(lathe("restore-backup", second))
            assert rows() == before
        else:
            with database.write() as session:  # ids are counted on from the copied ones
                history.note(session=session, run=session.get_one(Run, prepared.finished), message="new")
            assert sum(map(len, rows().values())) == sum(map(len, before.values())) + 1
    finally:
        move(monkeypatch, elsewhere / "pg", DATABASE_URL=postgresql_url)
        with database.engine().begin() as connection:
            for table in reversed(SQLModel.metadata.sorted_tables):
                connection.execute(table.delete())


def test_a_part_of_a_backup_and_another_file_are_refused_and_leave_nothing(
    prepared: Prepared, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, half, other = tmp_path / "lathe.tar", tmp_path / "half.tar", tmp_path / "other.tar"
    done(lathe("backup", file, "--secrets"))
    half.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    other.write_text("no backup")
    move(monkeypatch, elsewhere)
    for wrong in (half, other):
        assert "is not a complete backup" in refused(lathe("restore-backup", wrong))
        assert files(elsewhere) == {} and not list(elsewhere.glob(".*"))
    done(lathe("restore-backup", file))


def test_the_commands_of_the_document_make_and_restore_a_backup(
    prepared: Prepared, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "deploy.md").read_text(encoding="utf-8")
    section = page.partition("\n## Back up and restore\n")[2].partition("\n## ")[0]
    backup, restore = re.findall(r"^    lathe ((?:backup|restore-backup) .*?)(?:  +#.*)?$", section, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    done(lathe(*backup.split()))
    move(monkeypatch, elsewhere)
    done(lathe(*restore.split()))
    assert files(elsewhere) == files(prepared.home)
    assert "lathe.db" not in section  # a copy of the file alone lacks what is in lathe.db-wal


def test_what_no_backup_contains_is_refused_and_leaves_nothing(
    prepared: Prepared, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = tmp_path / "lathe.tar"
    done(lathe("backup", good))
    move(monkeypatch, elsewhere)
    link = tarfile.TarInfo("runs/link")
    link.type, link.linkname = tarfile.SYMTYPE, "../token"
    facts = {"format": 1, "bytes": 1, "tables": schema.revisions()[-1], "version": "0", "made_at": 1.0}
    wrong = [
        changed(good, contents.DATABASE, b"no database" * 1000),
        changed(good, contents.DATABASE, b""),
        changed(good, contents.END, b"", link),
        *(changed(good, contents.FACTS, text) for text in (b"{}", b"[" * 100_000, b"[]")),
        changed(good, contents.FACTS, json.dumps(facts | {"made_at": 1e300}).encode()),
        changed(good, contents.FACTS, json.dumps(facts | {"bytes": float("nan")}).encode()),
        changed(good, contents.FACTS, json.dumps(facts | {"tables": schema.revisions()[0]}).encode()),
    ]
    for file in wrong:
        assert "backup" in refused(lathe("restore-backup", file))
        assert files(elsewhere) == {} and not list(elsewhere.glob(".*"))
    done(lathe("restore-backup", good))


def test_a_restore_that_fails_at_the_database_leaves_nothing_and_can_be_repeated(
    prepared: Prepared, elsewhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lathe.tar"
    done(lathe("backup", file))
    move(monkeypatch, elsewhere)
    blocked = elsewhere / "lathe.db"
    blocked.parent.mkdir()
    blocked.mkdir()  # in place of the database
    with pytest.raises(Exception, match="unable to open database file"), file.open("rb") as stream:
        restoring.restore(stream, "stream", progress=lambda *_: None)
    assert files(elsewhere) == {}
    blocked.rmdir()
    done(lathe("restore-backup", file))


def changed(backup: Path, name: str, content: bytes, *before: tarfile.TarInfo) -> Path:
    """A copy of a backup, with another content of the file `name`, and further members before it."""
    target = backup.with_name(f"changed-{len(list(backup.parent.iterdir()))}.tar")
    with tarfile.open(backup) as old, tarfile.open(target, "w") as new:
        for member in old:
            stream = old.extractfile(member)
            if member.name == name:
                for one in before:
                    new.addfile(one)
                member.size, stream = len(content), io.BytesIO(content)
            new.addfile(member, stream)
    return target
