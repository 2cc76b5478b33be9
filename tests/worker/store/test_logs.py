"""Log lines in the database."""

import pytest
import sqlalchemy as sa

from worker.store import claims, history, runs
from worker.store import database as db


@pytest.fixture
def run(new_run):
    queued = new_run()
    with db.write() as session:
        claims.claim(session=session, run_id=queued.id, owner="node1:1:1", devices=["node1/cpu"], lease_seconds=60)
    return queued


def append(run, lines, new_offset, attempt=1):
    with db.write() as session:
        return history.append_log(session=session, run_id=run.id, attempt=attempt, lines=lines, new_offset=new_offset)


def tail(run, **options):
    with db.read() as session:
        return history.log_tail(session=session, run_id=run.id, **options)


def test_lines_are_stored_in_order_with_the_offset(run):
    assert append(run, ["first", "hf_Abcdefghijkl", "nul\0 and half a \ud800 pair"], 40)
    assert [line.text for line in tail(run)] == ["first", "hf_[redacted]", "nul and half a ? pair"]
    with db.read() as session:
        assert runs.get(session=session, run_id=run.id).log_offset == 40


@pytest.mark.parametrize("table", ["log_line", "run_event", "notification"])
def test_rows_beyond_what_32_bits_count_are_stored(database, run, table):
    if database == "postgresql":
        with db.write() as session:
            session.execute(sa.text(f"SELECT setval('{table}_id_seq', {2**31 - 1})"))
            assert session.execute(sa.text(f"SELECT nextval('{table}_id_seq')")).scalar() == 2**31
            session.execute(sa.text(f"SELECT setval('{table}_id_seq', 1)"))
    with db.read() as session:
        column = next(one for one in sa.inspect(session.get_bind()).get_columns(table) if one["name"] == "id")
    assert isinstance(column["type"], sa.BigInteger if database == "postgresql" else sa.Integer)


def test_lines_of_an_older_attempt_are_refused(run):
    assert not append(run, ["late"], 40, attempt=0)
    assert tail(run) == []


def test_storing_lines_twice_keeps_one_copy(run):
    for _ in range(2):
        assert append(run, ["once"], 5)
    assert [line.text for line in tail(run)] == ["once"]


def test_a_reader_gets_the_last_lines_and_then_new_ones(run):
    append(run, [str(number) for number in range(10)], 20)
    last = tail(run, limit=3)
    assert [line.text for line in last] == ["7", "8", "9"]
    append(run, ["new"], 24)
    assert [line.text for line in tail(run, after_id=last[-1].id)] == ["new"]


def test_a_search_in_a_long_log_reads_a_part_of_it_and_says_where_to_read_on(run, monkeypatch):
    monkeypatch.setattr(history, "MOST_SEARCHED", 4)
    append(run, ["Needle", *("hay" for _ in range(9))], 1)
    found, places, before = None, [], None
    with db.read() as session:
        first = history.log_head(session=session, run_id=run.id, limit=1)[0].id
        while found is None:
            found, before = history.last_line_with(session=session, run_id=run.id, text="needle", before_id=before)
            places.append(before and before - first)
    assert (found, places) == (first, [6, 2, None])
