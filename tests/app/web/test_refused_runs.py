"""A stored run that today's bounds refuse is no obstacle to anything else: it counts as absent wherever others are asked for.

Each operation of the OpenAPI document, each page and each round of a worker meets such runs of every status.
"""

import secrets
from typing import Any

import pytest
from openapi_fields import Document
from owned import BODIES, QUERIES, address, ids_of_routes, routes
from prepared import Prepared, prepared_installation  # noqa: F401
from sqlmodel import select
from starlette.testclient import TestClient
from web import client

from app.web.addresses import PAGES
from worker.queue import reaper
from worker.store import database, waiting
from worker.store.tables import Run, Status
from worker.sweeps import advance

pytestmark = pytest.mark.slow

REFUSED = -4242  # as lora_r
ENDLESS = ("/api/runs/{run_id}/stream", "/api/runs/{run_id}/live")
LAST = ("delete",)  # after what needs the rows


@pytest.fixture
def api(prepared: Prepared) -> TestClient:
    return client()


@pytest.fixture
def refused(prepared: Prepared) -> list[str]:
    """Runs that are refused, like a finished one and one of a sweep, with each status."""
    with database.write() as session:
        of_sweep = session.exec(select(Run).where(Run.sweep_id == prepared.sweep)).first()
        likes = [session.get_one(Run, prepared.finished), of_sweep]
        made = [
            like.model_dump()
            | {"id": secrets.token_hex(6), "status": status, "config": like.config | {"lora_r": REFUSED} | more}
            | {"seconds_per_step": 1.0, "trial": 9, "holder": None}
            for like in likes if like
            for status in Status
            for more in ({}, {"num_machines": 2, "num_processes": 2, "strategy": "ddp", "min_machines": None})
        ]  # fmt: skip
        session.add_all(Run(**values) for values in made)
    return [values["id"] for values in made]


@pytest.fixture
def ids(prepared: Prepared) -> dict[str, str]:
    """Of rows that are not refused, by the parameters of routes."""
    return ids_of_routes(prepared)


def bodies(api: TestClient, prepared: Prepared) -> dict[tuple[str, str], Any]:
    """A body for each operation that takes one: of a run's settings, those of a run that works."""
    run = {"model": "static/starter", "data": prepared.dataset}
    document = Document(api.app.openapi())  # type: ignore[attr-defined]
    found: dict[tuple[str, str], Any] = {}
    for method, path in routes(api):
        schema = document.body_schema(method, path) if path in document.document["paths"] else None
        if schema is not None:
            example = BODIES.get(path, document.example(schema))
            found[method, path] = run if str(schema.get("$ref", "")).endswith("/RunConfig") else example
    found["post", "/api/sweeps"] = {"config": run, "space": {"lora_r": [4, 8]}}
    return found


def test_runs_that_are_refused_break_no_operation_of_others(api, prepared, refused, ids, subtests):
    given = bodies(api, prepared)
    listed = [route for route in routes(api) if route[1] not in ENDLESS]
    listed += [("get", page.path) for page in PAGES]
    for method, path in sorted(listed, key=lambda route: (route[0] in LAST, route[0] != "get")):
        asked = address(path, ids) + QUERIES.get(path, "")
        answer = api.request(method, asked, json=given.get((method, path)))
        with subtests.test(f"{method} {path}"):
            assert answer.status_code < 500, answer.text[:500]
            assert answer.status_code < 400 or str(REFUSED) not in answer.text


def test_a_run_that_is_refused_is_shown_and_says_so(api, refused, ids, subtests):
    own = ids | {"run_id": refused[0], "object_id": refused[0]}
    for method, path in routes(api):
        if method == "get" and path not in ENDLESS and address(path, own) != address(path, ids):
            with subtests.test(path):
                assert api.get(address(path, own) + QUERIES.get(path, "")).status_code < 500
    for run in refused:
        assert api.get(f"/run?id={run}").status_code == 200
        shown = api.get(f"/api/runs/{run}").json()
        if shown["status"] == Status.QUEUED:
            assert "No worker can start it: lora_r" in shown["queue"]["job"]


def test_rounds_of_workers_leave_out_runs_that_are_refused(prepared, refused):
    with database.read() as session:
        startable = {run.id for run in waiting.startable(session=session)}
        several = {run for run in refused if session.get_one(Run, run).num_machines > 1}
        assert prepared.waiting in startable and several and not startable & several
    reaper.run_round()
    reaper.submit_waiting()
    advance.advance_all()
