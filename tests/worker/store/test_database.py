"""Connections, transactions and migrations on both engines."""

import contextlib
import math
import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
import time

import pytest
import sqlalchemy
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.operations import Operations
from played_run import PlayedRun
from sqlalchemy import text
from sqlmodel import SQLModel, col, select

from worker.settings import ROOT, get_settings
from worker.store import database as db
from worker.store import evaluations, metrics, schema, served_models, work
from worker.store.schema import NewerDatabase
from worker.store.tables import Dataset, Metric, MetricRollup, Run, Status


def tables() -> set[str]:
    return set(sqlalchemy.inspect(db.engine()).get_table_names())


def test_the_migrations_create_the_declared_tables(database):
    with db.engine().connect() as connection:
        assert (
            compare_metadata(MigrationContext.configure(connection, opts={"compare_type": True}), SQLModel.metadata)
            == []
        )


def test_the_migrations_can_be_reverted_and_applied_again(database):
    with db.migrating() as connection:
        command.downgrade(db.migration_config(connection), "base")
    assert tables() == {"alembic_version"}
    db.migrate()
    assert tables() == {"alembic_version", *SQLModel.metadata.tables}


def test_one_command_migrates_an_empty_installation(bare_home):
    subprocess.run([sys.executable, "-m", "worker.store.database"], cwd=ROOT, check=True)
    assert tables() == {"alembic_version", *SQLModel.metadata.tables}


def test_a_database_of_a_newer_version_is_neither_read_nor_written(database):
    change, latest = text("UPDATE alembic_version SET version_num = :version"), schema.revisions()[-1]
    with db.engine().connect() as connection:
        connection.detach()  # closed at the end of the block, not returned to a pool that is disposed of
        connection.execute(change, {"version": "9999"})
        connection.commit()
        db.dispose()
        for use in (db.read, db.write, db.migrating):
            with pytest.raises(NewerDatabase, match=r"given: '9999'.*newer version.*docs/deploy.md"), use() as session:
                session.execute(text("SELECT 1"))
        with pytest.raises(NewerDatabase):
            db.migrate()
        connection.execute(change, {"version": latest})
        connection.commit()
    db.migrate()


def test_work_that_is_held_and_work_that_waits_keeps_its_place_and_holder_when_the_tables_change(database):
    waiting, running = PlayedRun("waiting"), PlayedRun("running").claim("host/cpu")
    with db.write() as session:
        expires_at = session.get_one(Run, running.id).expires_at
        served = served_models.create(session=session, models=["1:base"], owner="local").id
        held = {"holder": "host:2:2", "device": "host/cuda:0", "lease_seconds": 150}
        assert served_models.claim(session=session, served_id=served, **held)
        item = evaluations.create(session=session, run_id=running.id, request={}, owner="local").id
        claim = {"owner": "host:3:3", "device": "host/cuda:1", "lease_seconds": 60}
        assert evaluations.claim(session=session, evaluation_id=item, **claim)
    with db.migrating() as connection:
        command.downgrade(db.migration_config(connection), "0025")
        seen_at = connection.execute(text("SELECT seen_at FROM served_model")).scalar_one()
        assert connection.execute(text("SELECT lease_owner FROM evaluation")).scalar_one() == "host:3:3"
    db.migrate()
    with db.read() as session:
        after = session.get_one(Run, running.id)
        assert (after.holder, after.expires_at, after.status) == ("host:1:1", expires_at, Status.RUNNING)
        assert session.get_one(Run, waiting.id).status is Status.QUEUED
        (model, expired), ((evaluation, _),) = work.SERVED.rows(session)[0], work.EVALUATION.rows(session)
        assert (model.holder, model.expires_at, expired) == ("host:2:2", pytest.approx(seen_at + 150), False)
        assert (evaluation.holder, evaluation.attempt) == ("host:3:3", 1)


def test_the_database_is_copied_before_it_is_migrated_and_the_copy_is_as_it_was(home):
    run, before, file = PlayedRun("kept"), schema.revisions()[-2], home / "lathe.db"
    with db.migrating() as connection:
        command.downgrade(db.migration_config(connection), before)
    assert not list(home.glob("lathe.db.0*"))
    db.migrate()
    (copy,) = home.glob("lathe.db.0*")
    assert (copy.name, copy.stat().st_mode & 0o077) == (f"{file.name}.{before}", 0)
    with contextlib.closing(sqlite3.connect(copy)) as old:
        assert old.execute("SELECT version_num FROM alembic_version").fetchall() == [(before,)]
        assert old.execute("SELECT id FROM run").fetchall() == [(run.id,)]
    db.migrate()
    assert list(home.glob("lathe.db.0*")) == [copy]


def test_a_database_that_cannot_be_copied_is_not_migrated(home):
    before = schema.revisions()[-2]
    with db.migrating() as connection:
        command.downgrade(db.migration_config(connection), before)
    (home / f"lathe.db.{before}").mkdir()
    with pytest.raises(OSError, match="directory"):
        db.migrate()
    assert not list(home.glob("*.part"))
    with db.engine().connect() as connection:
        assert MigrationContext.configure(connection).get_current_revision() == before


def test_concurrent_migrations_succeed(bare_home):
    context = multiprocessing.get_context("fork")
    started = [context.Process(target=db.migrate) for _ in range(4)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert [process.exitcode for process in started] == [0, 0, 0, 0]
    assert "run" in tables()


def test_migrating_again_changes_nothing(database, new_run):
    run = new_run()
    db.migrate()
    with db.read() as session:
        assert session.get(Run, run.id) is not None


def test_changing_a_table_keeps_rows_that_reference_it(database, new_run):
    run = new_run()
    with db.write() as session:
        metrics.add(session=session, run_id=run.id, points=[metrics.Point("loss", -1, 1, 0.0, 2.0)])
    with db.migrating() as connection:
        operations = Operations(MigrationContext.configure(connection))
        with operations.batch_alter_table("run") as batch:
            batch.alter_column("name", new_column_name="called")
    with db.read() as session:
        assert session.exec(select(Metric.value)).all() == [2.0]
    with db.migrating() as connection:
        operations = Operations(MigrationContext.configure(connection))
        with operations.batch_alter_table("run") as batch:
            batch.alter_column("called", new_column_name="name")


def test_data_sets_of_the_first_release_keep_their_properties_under_the_new_names(database):
    old = "INSERT INTO dataset (id, sha256, name, format, shape, rows, bytes, columns, sample, created_at) VALUES "
    with db.migrating() as connection:
        command.downgrade(db.migration_config(connection), "0001")
        connection.execute(text(f"{old} ('a', 'a', 'a.json', 'json', 'instruction/output', 7, 9, '[]', '[]', 0)"))
        connection.execute(text(f"{old} ('b', 'b', 'b.json', 'json', 'text', 5, 9, '[]', '[]', 0)"))
    db.migrate()
    with db.read() as session:
        rows = session.exec(select(Dataset).order_by(col(Dataset.id))).all()
    assert [(row.row_format, row.counts, row.warnings, row.columns_map) for row in rows] == [
        ("alpaca", {"alpaca": 7}, [], None),
        ("text", {"text": 5}, [], None),
    ]
    assert all(row.reason for row in rows)


def test_a_failed_transaction_stores_nothing(database):
    def fail() -> None:
        with db.write() as session:
            session.add(
                Dataset(id="1", sha256="1", name="x", format="csv", row_format="text", rows=1, bytes=1, created_at=0)
            )
            session.flush()
            raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        fail()
    with db.read() as session:
        assert session.exec(select(Dataset)).all() == []


def test_loaded_objects_are_usable_after_the_session(database, new_run):
    run = new_run(name="mine")
    with db.read() as session:
        read = session.get_one(Run, run.id)
    with db.write() as session:
        written = session.get_one(Run, run.id)
    assert (run.name, read.name, written.name, written.status) == ("mine", "mine", "mine", Status.QUEUED)


def test_an_action_after_commit_runs_once_and_only_after_a_commit(database):
    done: list[str] = []
    with db.write() as session:
        session.exec(select(Run)).all()
        db.after_commit(session, lambda: done.append("committed"))
        assert done == []
    with pytest.raises(RuntimeError), db.write() as session:
        session.exec(select(Run)).all()
        db.after_commit(session, lambda: done.append("rolled back"))
        raise RuntimeError
    assert done == ["committed"]


def test_writers_that_read_before_they_write_wait_for_each_other(database, new_run):
    run = new_run()

    def count() -> None:
        for _ in range(10):
            with db.write() as session:
                rows = session.exec(select(Run).where(Run.id == run.id).with_for_update()).one()
                rows.step += 1
                session.add(rows)

    threads = [threading.Thread(target=count) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with db.read() as session:
        assert session.get_one(Run, run.id).step == 60


def test_a_reader_does_not_wait_for_a_writer(database, new_run):
    run = new_run()
    with db.write() as writing:
        writing.get_one(Run, run.id).step = 7
        writing.flush()
        with db.read() as reading:
            assert reading.get_one(Run, run.id).step == 0


def test_the_clock_is_the_database_s_and_in_seconds_since_the_epoch(database):
    with db.read() as session:
        first, second = db.now(session=session), db.now(session=session)
    assert math.isclose(first, time.time(), abs_tol=60)
    assert first <= second


def test_numbers_that_json_lacks_are_stored_as_null(database, new_run):
    run = new_run()
    with db.write() as session:
        session.get_one(Run, run.id).summary = {"loss": math.nan, "list": [math.inf, 1.5]}
    with db.read() as session:
        assert session.get_one(Run, run.id).summary == {"loss": None, "list": [None, 1.5]}


def test_deleting_a_run_deletes_what_belongs_to_it(database, new_run):
    run = new_run()
    with db.write() as session:
        metrics.add(session=session, run_id=run.id, points=[metrics.Point("loss", -1, 1, 0.0, 2.0)])
        session.delete(session.get_one(Run, run.id))
    with db.read() as session:
        remaining = [session.exec(select(table)).all() for table in (Metric, MetricRollup)]
    assert remaining == [[], []]


def _read_in_child(run_id: str, parent_engine: int) -> None:
    with db.read() as session:
        row = session.get(Run, run_id)
    os._exit(0 if row is not None and id(db.engine()) != parent_engine else 1)


def test_a_forked_process_opens_its_own_connections(database, new_run):
    run = new_run()
    child = multiprocessing.get_context("fork").Process(target=_read_in_child, args=(run.id, id(db.engine())))
    child.start()
    child.join()
    assert child.exitcode == 0
    with db.read() as session:
        assert session.get(Run, run.id) is not None


def test_sqlite_keeps_a_write_ahead_log_and_checks_references(home):
    with db.read() as session:
        names = ("journal_mode", "foreign_keys", "synchronous")
        pragmas = [session.connection().execute(text(f"PRAGMA {name}")).scalar() for name in names]
    assert pragmas == ["wal", 1, 1]
    assert get_settings().sqlalchemy_url.startswith("sqlite:///")


def test_a_new_database_is_private_from_its_creation(bare_home):
    db.migrate()
    with db.write() as session:
        db.now(session=session)
    files = list(bare_home.glob("lathe.db*"))
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
