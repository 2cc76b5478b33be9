"""Requests made from the OpenAPI document, valid and invalid ones, as each kind of caller: none is answered with 500."""

import itertools
import time
from contextlib import suppress
from importlib.util import find_spec

import pytest
from prepared import prepared_installation  # noqa: F401
from web import client

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(find_spec("schemathesis") is None, reason="needs the package schemathesis"),
    pytest.mark.filterwarnings("ignore:::hypothesis", "ignore:::schemathesis", "ignore:::jsonschema"),
]

FUZZ_SECONDS = 600
AT_ONCE = 5  # requests to an operation, before those to the next
ENDLESS = {"/api/runs/{run_id}/stream"}
CALLERS = ("the server's user", "alice", "carol", None)


@pytest.fixture
def document(prepared, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return client().get("/api/openapi.json").json()


@pytest.mark.parametrize("caller", CALLERS, ids=str)
def test_no_request_is_answered_with_500(document, prepared, caller):
    import schemathesis
    from hypothesis import HealthCheck, Phase, given, seed, settings

    api = client()
    api._transport.raise_server_exceptions = False
    if caller in prepared.tokens:
        api.headers["Authorization"] = f"Bearer {prepared.tokens[caller]}"
    elif caller is None:
        del api.headers["Authorization"]
    operations = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    operations = [operation for operation in operations if operation.path not in ENDLESS]
    assert len(operations) > 80
    ids = {
        "run_id": prepared.finished, "dataset_id": prepared.dataset, "sweep_id": prepared.sweep, "row": 1,
        "evaluation_id": prepared.base, "served_id": prepared.served, "object_id": prepared.finished, "listed": "runs",
    }  # fmt: skip

    def ask(operation, mode, known, number):
        names = {parameter.name for parameter in operation.path_parameters}
        fixed = {name: ids[name] for name in names & ids.keys()} if known and names <= ids.keys() else None
        strategy = operation.as_strategy(mode, path_parameters=fixed)

        @seed(number)
        @settings(
            max_examples=AT_ONCE, deadline=None, database=None, phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(strategy)
        def send(case):
            given = case.as_transport_kwargs(base_url="http://127.0.0.1:7860")
            headers = {
                name: value for name, value in given.get("headers", {}).items() if name.lower() != "authorization"
            }
            body = {"json": given["json"]} if "json" in given else {"content": given.get("data") or b""}
            sent = {
                "method": given["method"],
                "url": given["url"],
                "params": given.get("params"),
                "headers": headers,
                **body,
            }
            with suppress(UnicodeError):  # what no client can send
                answer = api.request(**sent)
                assert answer.status_code < 500 or answer.status_code in (503, 507), (
                    case.as_curl_command(),
                    answer.text[:500],
                )
                if caller is None and operation.path != "/healthz":
                    assert answer.status_code in (401, 404, 405), (case.as_curl_command(), answer.text[:500])

        send()

    until, failures = time.monotonic() + FUZZ_SECONDS, {}
    for number in itertools.count():
        for operation in operations:
            for mode in schemathesis.GenerationMode:
                if time.monotonic() > until or operation.label in failures:
                    break
                try:
                    ask(operation, mode, number % 2 == 0, number)
                except AssertionError as error:
                    failures[operation.label] = str(error)[:1500]
        if time.monotonic() > until:
            break
    assert failures == {}
