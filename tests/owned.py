"""An installation of which everything is alice's, as tests of what other users see and change need it."""

import re

import pytest
from prepared import prepared_installation  # noqa: F401
from sqlmodel import SQLModel, select, update
from suite_parts import CASES
from web import client

from app.access.dataset_imports import intakes
from worker.evaluations import suites
from worker.settings import get_settings
from worker.store import database, prompt_sets
from worker.store.tables import Dataset, Evaluation, PromptSet, Run, ServedModel, Sweep

SECRET = "zebra"
OWNED = (Run, Sweep, Dataset, Evaluation, ServedModel, PromptSet)
BODIES = {
    "/api/datasets/{dataset_id}/rows/stop": {"search": "1"},
    "/api/runs/{run_id}/move": {"before": None},
    "/api/runs/{run_id}/evaluations": {"data": "static/starter/train.jsonl"},
    "/api/datasets/{dataset_id}": {"columns": None},
    "/api/prompt-sets/{set_id}/answers": {"model": "m", "answers": []},
    "/api/prompt-sets/{set_id}/every-result": {"every_result": True},
    "/api/{listed}/{object_id}/shares": {"users": ["bob"]},
}
QUERIES = {
    "/api/runs/{run_id}/checkpoint.zip": "?step=1",
    "/api/datasets/{dataset_id}/tokens": "?model=static/starter",
    "/api/datasets/{dataset_id}/rows/{row}/tokens": "?model=static/starter",
}
"""What the routes require, so that only the permission can refuse the request."""

VALUES = dict.fromkeys(("form", "name", "step", "import_id", "diagnosis_id", "channel_id"), "csv")
"""The parameters of routes that are no ids of the installation's rows."""

ENDLESS = "/api/runs/{run_id}/stream"


def ids_of_routes(prepared):
    """Ids of rows of the prepared installation, with a suite and a set of prompts made here, by the parameters of routes."""
    suite = suites.start(prepared.finished, suites.parse({"cases": CASES, "data": prepared.heldout}))[0].asked.suite
    with database.write() as session:
        prompts = prompt_sets.save(session=session, name=SECRET, prompts=[{"user": SECRET}], owner="alice").id
    return {
        "run_id": prepared.finished, "dataset_id": prepared.dataset, "sweep_id": prepared.sweep, "object_id": prepared.finished,
        "row": "1", "result_form": "merged", "evaluation_id": prepared.base, "served_id": prepared.served, "set_id": prompts,
        "suite_id": suite,
    }  # fmt: skip


@pytest.fixture(name="own")
def everything_is_alices(prepared, monkeypatch):
    """The prepared installation, of which everything is alice's and has a secret name; the ids by the parameters of routes."""
    monkeypatch.setenv("LATHE_VISIBILITY", "own")
    get_settings.cache_clear()
    ids = ids_of_routes(prepared)
    with database.write() as session:
        for table in OWNED:
            session.exec(update(table).values(owner="alice"))
        for table in (Run, Sweep, Dataset):
            session.exec(update(table).values(name=table.name + SECRET))
    yield ids
    get_settings.cache_clear()


@pytest.fixture(name="api")
def client_of_own(own):
    intakes.begin(SECRET, 0, list, owner="alice")
    yield client(visibility="own")
    intakes._intakes.clear()


def as_(prepared, name):
    return {"Authorization": f"Bearer {prepared.tokens[name]}"}


def routes(api):
    """Each operation of the OpenAPI document, after those that it leaves out."""
    for end in ("plots", "log-window"):
        yield "get", f"/api/runs/{{run_id}}/{end}"
    yield "get", "/v1/models"
    for path, item in api.get("/api/openapi.json").json()["paths"].items():
        for method in item:
            yield method, path


def address(path, ids, listed="runs"):
    known = VALUES | ids | {"listed": listed}  # a new parameter belongs to one of them
    return re.sub(r"{(\w+)}", lambda name: known[name[1]], path)


def forbidden_words(prepared, ids):
    return {
        SECRET,
        "alice",
        *(str(value) for value in vars(prepared).values() if isinstance(value, str)),
        *(value for name, value in ids.items() if name not in ("row", "result_form")),
    } - {str(prepared.home)}


def everything_stored():
    """All rows of all tables, as texts with their owner, if they have one."""
    with database.read_everything() as session:
        rows = {
            name: session.connection().execute(select(table)).mappings().all()
            for name, table in SQLModel.metadata.tables.items()
            if name != "machine"  # workers report
        }
    return {(name, repr(row)): row.get("owner", row.get("user")) for name, listed in rows.items() for row in listed}
