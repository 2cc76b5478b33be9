"""The endpoint notices that the client of a request has left, also without a stream; with real sockets and a real server."""

import json
import socket

import pytest
from forked_server import server
from patience import eventually
from played_run import PlayedRun

from app.access.server_token import server_token
from worker.machine.process_identity import me
from worker.settings import get_settings
from worker.store import database, served_models
from worker.store.tables import Status
from worker.store.work import SERVED

pytestmark = pytest.mark.slow


@pytest.fixture
def site(home):
    with server(home) as started:
        yield started


@pytest.fixture
def model():
    """A process that takes requests and never answers them, as the model that is served; its socket and its name."""
    run = PlayedRun(model="models/tiny").claim("elsewhere/cpu")
    run.end(Status.FAILED)
    with socket.create_server(("127.0.0.1", 0)) as listening, database.write() as session:
        name = f"{run.id}:base"
        found = served_models.create(session=session, models=[name], owner="local").id
        served_models.claim(session=session, served_id=found, holder=str(me()), device=None, lease_seconds=600)
        SERVED.change(
            session, *SERVED.named((found,)), **served_models.ready(f"127.0.0.1:{listening.getsockname()[1]}")
        )
        session.commit()
        yield listening, name


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_before_the_answer_ends_its_request_to_the_model(site, model, stream):
    listening, name = model
    body = json.dumps({"model": name, "prompt": "a", "stream": stream}).encode()
    token = server_token(get_settings())
    head = (
        f"POST /v1/completions HTTP/1.1\r\nHost: HOST\r\nAuthorization: Bearer {token}\r\nContent-Length: {len(body)}"
    )
    client = site.connect(f"{head}\r\n\r\n".encode() + body)
    connection, _ = listening.accept()
    with connection:
        received = b""
        while not received.endswith(body):
            received += connection.recv(65536)
        client.close()
        connection.setblocking(False)
        assert eventually(lambda: _closed(connection))


def _closed(connection):
    try:
        return connection.recv(65536) == b""
    except BlockingIOError:
        return False
