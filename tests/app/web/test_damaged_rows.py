"""A row that cannot be read whole breaks no list and no page, and stops no worker: it is shown as damaged, the others as they are.

Each JSON column of each table gets several other shapes, each in a row of its own.
"""

import json
import random
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from played_run import PlayedRun
from prepared import Prepared, prepared_installation  # noqa: F401
from sqlalchemy import JSON, Connection, Table, UniqueConstraint, text
from sqlmodel import SQLModel
from starlette.testclient import TestClient
from suite_parts import CASES
from web import client

from app.web.addresses import PAGES
from worker.notifications import delivery
from worker.settings import get_settings
from worker.store import (
    builds,
    channels,
    claims,
    database,
    evaluations,
    machines,
    nodes,
    outbox,
    prompt_sets,
    served_models,
    waiting,
)
from worker.store.tables import ChannelKind, Preferences, Run, Status
from worker.store.tables.row import from_json
from worker.sweeps import advance

SHAPES: dict[str, Any] = {
    "a list": [1],
    "a list of lists": [["x"]],
    "an object": {},
    "an object of other types": {
        "model": 5,
        "data": 5,
        "message": [5],
        "memory": 5,
        "name": {},
        "metrics": [7],
        "runs": 3,
    },
    "a text": "x",
    "null": None,
    "a number": 7,
    "numbers too large": {"model": "m", "data": "d", "lora_r": 10**400, "bytes": 10**400},
}
DAMAGES = {name: json.dumps(value) for name, value in SHAPES.items()} | {
    "not JSON": '{"model": ',
    "no text": b"\xff\xfe\x00",
    "not finite": '{"model": 1e999, "peak_bytes": -Infinity, "step": NaN}',
    "half a character": '{"model": "\\ud800"}',
    "nested too deeply": "[" * 10_000 + "]" * 10_000,
}
"""Shapes as their JSON, and what is no JSON that can be read."""
NAMES = {"run": "run_id", "dataset": "dataset_id", "sweep": "sweep_id", "evaluation": "evaluation_id"}
"""Tables whose rows have addresses, and what REST calls their ids."""
LISTS = {
    "run": ("/api/runs?limit=1000", "runs", "id"),
    "dataset": ("/api/datasets?limit=1000", "datasets", "id"),
    "sweep": ("/api/sweeps?limit=1000", "sweeps", "id"),
    "evaluation": ("/api/runs/{run}/evaluations", "evaluations", "id"),
    "machine": ("/api/system", "machines", "name"),
    "prompt_set": ("/api/prompt-sets", "prompt_sets", "id"),
    "notification_channel": ("/api/notifications", "channels", "id"),
}
ALWAYS = ("a text", "not JSON", "no text", "nested too deeply")
"""Damages that suit no column."""
ENDLESS = "/api/runs/{run_id}/stream"


@dataclass(frozen=True)
class Damaged:
    """A row of which a column has another shape."""

    table: str
    column: str
    shape: str
    key: tuple[tuple[str, Any], ...]

    @property
    def id(self) -> str:
        return str(self.key[0][1])

    @property
    def where(self) -> str:
        return f"{self.table}.{self.column}: {self.shape}"


@pytest.fixture
def api(prepared: Prepared) -> TestClient:
    """A client of an installation with a row in every table that has JSON."""
    PlayedRun.of(prepared.waiting).claim("host/cpu")
    with database.write() as session:
        about = {"owner": "local", "address": "https://example.org/x", "events": ["failed"]}
        channel = channels.add(session=session, kind=ChannelKind.WEBHOOK, **about)
        outbox.add_test(session=session, channel=channel)
        prompt_sets.save(session=session, name="questions", prompts=[{"user": "1 + 1?"}], owner="local")
        session.add(Preferences(owner="local", tour=["import"]))
        machines.report_engine(session=session, name="slurm", capacity={"engine": "slurm", "pools": []})
        builds.create(session=session, run_id=prepared.finished, form="merged", owner="local")
        nodes.place(session=session, run_id=prepared.waiting, attempt=1, devices_of={"host2": ["host2/cpu"]})
    return client()


def json_columns() -> Iterator[tuple[Table, str]]:
    for table in SQLModel.metadata.sorted_tables:
        yield from ((table, column.name) for column in table.columns if isinstance(column.type, JSON))


def damage_everything(prepared: Prepared) -> list[Damaged]:
    """A damaged copy of a row for each JSON column and each damage."""
    with database.engine().begin() as connection:
        rows = [
            Damaged(table.name, column, shape, damaged_copy(connection, table, column, value))
            for table, column in json_columns()
            for shape, value in DAMAGES.items()
        ]
    folder = get_settings().datasets_dir
    for row in rows:
        if row.table == "dataset":
            shutil.copy(folder / f"{prepared.dataset}.jsonl", folder / f"{row.id}.jsonl")
    return rows


def damaged_copy(connection: Connection, table: Table, column: str, value: Any) -> tuple[tuple[str, Any], ...]:
    """Copies a row of the table with another value in a column; returns its key."""
    alone = [one for one in table.constraints if isinstance(one, UniqueConstraint) and len(one.columns) == 1]
    keys = {key.name for key in table.primary_key.columns}
    new = keys | {name.name for one in alone for name in one.columns} | {"form"}
    values = dict(connection.execute(text(f"SELECT * FROM {table.name}")).mappings().fetchone() or {}) | {column: value}
    for name in (new - ({"run_id"} if table.name != "run" else set())) & values.keys():
        is_number = table.columns[name].type.python_type is int
        values[name] = secrets.randbelow(2**30) + 10 if is_number else secrets.token_hex(6)
    names, places = ", ".join(f'"{name}"' for name in values), ", ".join(f":{name}" for name in values)
    connection.execute(text(f"INSERT INTO {table.name} ({names}) VALUES ({places})"), values)
    return tuple((name, values[name]) for name in sorted(keys, key=list(values).index))


def stored(row: Damaged) -> Any:
    """What the column holds, byte for byte."""
    where = " AND ".join(f"{name} = :{name}" for name, _ in row.key)
    with database.engine().connect() as connection:
        return connection.execute(text(f"SELECT {row.column} FROM {row.table} WHERE {where}"), dict(row.key)).scalar()


def addresses(api: TestClient, ids: dict[str, str]) -> list[str]:
    """Every page, and every address of REST to read, with these ids."""
    about = {"/run": f"id={ids['run_id']}", "/dataset": f"id={ids['dataset_id']}", "/sweep": f"id={ids['sweep_id']}"}
    runs = f"runs={ids['run_id']}"
    pages = [f"{page.path}?{(about | {'/compare': runs}).get(page.path, '')}" for page in PAGES]
    more = {"name": ids["run_id"], "row": "1", "form": "csv", "listed": "runs", "object_id": ids["run_id"]}
    known = ids | more | {"import_id": "1", "diagnosis_id": "x", "result_form": "merged"}
    paths = [
        path.format_map(known)
        for path, methods in api.get("/api/openapi.json").json()["paths"].items()
        if "get" in methods and path != ENDLESS
    ]
    return pages + [f"{path}?{runs if 'compare' in path else ''}" for path in paths]


@pytest.fixture
def whole(prepared: Prepared) -> dict[str, str]:
    """Ids of rows that are not damaged."""
    ids = {"run_id": prepared.finished, "dataset_id": prepared.dataset}
    suite = client().post(f"/api/runs/{prepared.finished}/suites", json={"cases": CASES}).json()["id"]
    with database.write() as session:
        served = served_models.create(session=session, models=[f"{prepared.finished}:base"], owner="local").id
    return ids | {
        "sweep_id": prepared.sweep,
        "evaluation_id": prepared.result,
        "suite_id": suite,
        "served_id": served,
    }


@pytest.mark.slow
def test_damaged_rows_break_no_page_and_stay_as_they_are(api, prepared, whole, subtests):
    rows = damage_everything(prepared)
    before = [stored(row) for row in rows]
    general = addresses(api, whole)
    for address in general:
        with subtests.test(address):
            assert api.get(address).status_code < 500
    chosen = random.Random(20261127)
    for table, column in sorted({(row.table, row.column) for row in rows if row.table in NAMES}):
        row = chosen.choice([row for row in rows if (row.table, row.column) == (table, column)])
        for address in sorted(set(addresses(api, whole | {NAMES[table]: row.id})) - set(general)):
            with subtests.test(f"{row.where}: {address}"):
                assert api.get(address).status_code < 500
    assert [stored(row) for row in rows] == before


@pytest.mark.nightly
def test_every_address_of_every_damaged_row_answers(api, prepared, whole, subtests):
    general = set(addresses(api, whole))
    for row in damage_everything(prepared):
        for address in sorted(set(addresses(api, whole | {NAMES.get(row.table, ""): row.id})) - general):
            with subtests.test(f"{row.where}: {address}"):
                assert api.get(address).status_code < 500


@pytest.mark.slow
def test_lists_have_every_row_and_name_what_cannot_be_read(api, prepared, whole, subtests):
    known = {*whole.values(), "node1"}
    rows = damage_everything(prepared)
    for table, (address, field, name) in LISTS.items():
        listed = {item[name]: item for item in api.get(address.format(run=prepared.finished)).json()[field]}
        for row in (row for row in rows if row.table == table):
            with subtests.test(row.where):
                assert set(listed[row.id]["damaged"]) <= {row.column}
                assert listed[row.id]["damaged"] or row.shape not in ALWAYS
                assert (row.column in listed[row.id]["damage"]) == bool(listed[row.id]["damaged"])
        assert all(not listed[key]["damaged"] for key in known & listed.keys()), table
    run = next(row.id for row in rows if row.where == "run.config: not JSON")
    assert "Cannot be read: config (it is not JSON)" in api.get(f"/?search={run}").text


@pytest.mark.slow
def test_a_damaged_run_can_be_deleted_and_not_resumed(api, prepared):
    run = next(row for row in damage_everything(prepared) if row.where == "run.config: a list")
    with database.write() as session:
        session.get_one(Run, run.id).status = Status.FAILED
    refused = api.post(f"/api/runs/{run.id}/resume")
    assert refused.status_code == 409
    assert "is damaged: config (Input should be a valid dictionary)" in refused.json()["error"]["message"]
    assert "cannot be read: config (Input" in api.get(f"/run?id={run.id}").text
    assert api.delete(f"/api/runs/{run.id}").status_code == 204


def test_workers_leave_out_damaged_rows_and_do_the_others(api, prepared, caplog):
    rows = damage_everything(prepared)
    with database.read() as session:
        assert [node.rank for node in nodes.unclaimed(session=session, host="host2")] == [1]
    with database.engine().begin() as connection:
        for table in ("run", "evaluation", "build"):
            connection.execute(text(f"UPDATE {table} SET status = 'queued'"))
        connection.execute(text("UPDATE served_model SET state = 'waiting'"))
    queries = {
        "run": waiting.startable, "evaluation": evaluations.startable, "build": builds.startable,
        "served_model": served_models.waiting,
    }  # fmt: skip
    with database.read() as session:
        for table, query in queries.items():
            damaged = {row.id for row in rows if row.table == table and row.shape in ALWAYS}
            found = {item.id for item in query(session=session)}
            assert damaged and found and not damaged & found
    run = next(row.id for row in rows if row.where == "run.config: not JSON")
    with database.write() as session:
        claim = {"owner": "host:1:1", "devices": ["host9/cpu"], "lease_seconds": 60}
        assert claims.claim(session=session, run_id=run, **claim) is None
    assert "request (it is not JSON) cannot be read" in caplog.text
    advance.advance_all()
    delivery.deliver_due()


def test_values_that_are_no_numbers_are_read_as_null():
    assert from_json('{"a": NaN, "b": [-Infinity, 1e999, 1.5]}') == {"a": None, "b": [None, None, 1.5]}
