"""The server closes connections with incomplete requests; tested with real sockets and a real server."""

import asyncio
import socket
import sys
from contextlib import ExitStack

import patience
import pytest
import uvicorn
from forked_server import server
from paths import ROOT
from uvicorn.server import ServerState

from app.access import callers
from app.access.callers import Caller
from app.web.listening import Connection, Limits, listeners
from app.web.middleware import RequestLimits, Turns

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server that waits three seconds for the rest of a request."""
    with server(tmp_path_factory.mktemp("hasty") / "home", REQUEST_SECONDS="3") as started:
        yield started


@pytest.fixture(scope="module")
def patient(tmp_path_factory):
    """A server that waits an hour and accepts 8 requests at a time, and 4 incomplete ones, half of them of one caller or peer."""
    with server(tmp_path_factory.mktemp("patient") / "home", REQUEST_SECONDS="3600", CONNECTIONS="8") as started:
        yield started


HEALTH = b"GET /healthz HTTP/1.1\r\nHost: HOST\r\nConnection: close\r\n\r\n"


def rest(connection):
    """Reads until the server closes the connection, which it must."""
    received = b""
    try:
        while piece := connection.recv(65536):
            received += piece
    except ConnectionError:
        pass
    return received


INCOMPLETE = (
    b"",
    b"GET / HTTP/1.1\r\nHost: ",
    b"POST /api/runs HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100\r\n\r\n{",
    b"POST /api/runs HTTP/1.1\r\nHost: HOST\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
    b"POST /gradio_api/run/predict HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100\r\n\r\n{",
)


def test_an_incomplete_request_is_closed(served, subtests):
    with ExitStack() as held:
        opened = [(sent, held.enter_context(served.connect(sent))) for sent in INCOMPLETE]
        for sent, connection in opened:
            with subtests.test(sent.decode()):
                assert b"200 OK" not in rest(connection)


def test_a_second_incomplete_request_is_closed_too(served):
    with served.connect(b"GET /healthz HTTP/1.1\r\nHost: HOST\r\n\r\n") as connection:
        assert connection.recv(12) == b"HTTP/1.1 200"
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHo")
        assert rest(connection).count(b"HTTP/1.1") == 0


def test_a_slow_body_after_its_answer_is_closed(served):
    head = b"POST /nowhere HTTP/1.1\r\nHost: HOST\r\nContent-Length: 100\r\n\r\n"
    with served.connect(head) as connection:
        assert connection.recv(9) == b"HTTP/1.1 "
        rest(connection)


def test_the_oldest_incomplete_request_is_closed_for_a_new_one(patient):
    with ExitStack() as held:
        slow = [held.enter_context(patient.connect(b"GET / HTTP/1.1\r\n")) for _ in range(3)]
        with patient.connect(HEALTH) as connection:
            assert b"200 OK" in rest(connection)
        assert rest(slow[0]) == b""
        slow[-1].sendall(b"\r\n")
        assert slow[-1].recv(9) == b"HTTP/1.1 "


def test_of_two_peers_the_one_with_the_most_incomplete_requests_loses_its_oldest():
    closed = []
    limits = Limits(3600, 4, 100)

    class Incomplete:
        def __init__(self, peer):
            self.peer = peer

        def expire(self):
            closed.append(self)
            limits.release(self)

    def open_from(peer):
        limits.admit(connection := Incomplete(peer))
        return connection

    first, *_ = [open_from(1000) for _ in range(2)]
    others = [open_from(address) for address in ("10.0.0.1", "10.0.0.2")]
    assert closed == []
    open_from("10.0.0.3")
    assert closed == [first]
    open_from("10.0.0.1")
    open_from("10.0.0.1")
    assert others[0] in closed and others[1] not in closed and len(limits.waiting[1000]) == 1


def test_a_caller_above_their_share_is_refused_until_a_page_is_closed_and_healthz_answers(patient):
    page = b"GET /gradio_api/heartbeat/page HTTP/1.1\r\nHost: HOST\r\n\r\n"
    with ExitStack() as held:
        opened = [held.enter_context(patient.connect(page)) for _ in range(4)]
        assert {connection.recv(12) for connection in opened} == {b"HTTP/1.1 200"}
        with patient.connect(page) as refused:
            answer = refused.recv(4096)
        assert answer.startswith(b"HTTP/1.1 429") and b"retry-after: 5" in answer
        with patient.connect(HEALTH) as connection:
            assert b"200 OK" in rest(connection)


def test_requests_at_a_time_are_limited_for_each_caller_and_for_all():
    answers = []

    async def ask(limits, name, release, path="/gradio_api/heartbeat/page"):
        callers.begin(Caller(name))

        async def send(message):
            if message["type"] == "http.response.start":
                answers.append((name, message["status"]))

        await limits({"type": "http", "path": path, "method": "GET"}, release.wait, send)

    async def app(_scope, receive, send):
        await send({"type": "http.response.start", "status": 200})
        await receive()

    async def scenario():
        limits, release = RequestLimits(app, most=4), asyncio.Event()
        asked = [
            asyncio.create_task(ask(limits, "alice", release, path)) for path in ("/", "/", "/healthz", "/healthz")
        ]
        names = ("alice", "alice", "alice", "bob", "carol")
        asked += [asyncio.create_task(ask(limits, name, release)) for name in names]
        while len(answers) < len(asked):
            await asyncio.sleep(0)
        release.set()
        await asyncio.gather(*asked)
        assert not limits.open
        await ask(limits, "alice", release)

    asyncio.run(scenario())
    assert answers == [
        ("alice", 200), ("alice", 429), ("alice", 200), ("alice", 200),
        ("alice", 200), ("alice", 200), ("alice", 429), ("bob", 200), ("carol", 503), ("alice", 200),
    ]  # fmt: skip


def test_a_request_that_has_arrived_is_read_before_its_connection_counts(patient):
    with ExitStack() as held:
        sent = [held.enter_context(patient.connect(HEALTH)) for _ in range(40)]
        assert all(b"200 OK" in rest(connection) for connection in sent)


class Watched(Connection):
    """A connection that counts the received bytes."""

    received = 0

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.received += len(data)


async def listening(connection, limits):
    """A server on a free port of this machine."""
    (listener,) = await listeners("127.0.0.1", 0, limits)
    return await asyncio.get_running_loop().create_server(connection, sock=listener)


async def timers(*sent):
    """The time limit of a connection after each of these pieces of a request has come; None where there is none."""
    created = []

    async def app(_scope, receive, _send):
        while (await receive()).get("more_body"):
            pass

    config = uvicorn.Config(app, log_level="critical", lifespan="off")
    config.load()

    limits = Limits(3600, 10, 100, grace=3600)

    def connection():
        created.append(Watched(config=config, server_state=ServerState(), app_state={}, limits=limits))
        return created[-1]

    listener = await listening(connection, limits)
    _, writer = await asyncio.open_connection(*listener.sockets[0].getsockname())
    result, seen = [], 0
    for piece in sent:
        writer.write(piece)
        seen += len(piece)
        while not created or created[0].received < seen:
            await asyncio.sleep(0.001)
        result.append(created[0]._timer)
    writer.close()
    await writer.wait_closed()
    listener.close()
    return result


def test_connections_are_limited_for_each_peer_and_for_all():
    limits = Limits(3600, 10, 2)

    def connect(peer):
        return limits.connect((peer, 50_000), ("10.0.0.1", 7860)).refusal

    assert [connect(peer) for peer in ("a", "a", "b", "b")] == [b""] * 4
    refused = connect("a")
    assert refused.startswith(b"HTTP/1.1 429 Too Many Requests\r\n") and b"Close some of your pages" in refused
    limits.disconnect("a")
    assert connect("c").startswith(b"HTTP/1.1 503 ")
    for peer in ("a", "a", "b", "b", "c"):
        limits.disconnect(peer)
    assert not limits.open and connect("c") == b""


@pytest.mark.parametrize("silent", [False, True], ids=["refused on arrival", "refused once its request is here"])
def test_beyond_the_limit_only_healthz_reaches_the_application(silent):
    reached, created = [], []

    async def app(scope, _receive, send):
        reached.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def scenario():
        config = uvicorn.Config(app, log_level="critical", lifespan="off")
        config.load()
        state, limits = ServerState(), Limits(3600, 10, 1)

        def connection():
            created.append(Connection(config=config, server_state=state, app_state={}, limits=limits))
            return created[-1]

        listener = await listening(connection, limits)
        address = listener.sockets[0].getsockname()
        _, first = await asyncio.open_connection(*address)
        answers = []
        for path in (b"/api/runs", b"/healthz"):
            with socket.create_connection(address) as client:
                while silent and limits.open.total() < 2:
                    await asyncio.sleep(0.001)
                client.sendall(b"GET %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % path)
                answers.append(await asyncio.to_thread(rest, client))
            while limits.open.total() > 1:
                await asyncio.sleep(0.001)
        first.close()
        while limits.open:
            await asyncio.sleep(0.001)
        listener.close()
        return answers

    refused, health = asyncio.run(scenario())
    assert refused.startswith(b"HTTP/1.1 429") and b"retry-after: 5" in refused and b'"field":"requests"' in refused
    assert health.startswith(b"HTTP/1.1 200") and reached == ["/healthz"]
    assert len(created) == (3 if silent else 2)


def test_healthz_does_not_wait_for_the_requests_that_arrive_with_it():
    reached = []

    async def app(scope, _receive, _send):
        reached.append(scope["path"])

    async def scenario():
        turns = Turns(app)
        scopes = [{"type": "http", "path": path} for path in ("/api/runs",) * 100 + ("/healthz",)]
        await asyncio.gather(*(turns(scope, None, None) for scope in scopes))

    asyncio.run(scenario())
    assert reached.index("/healthz") < 10 and reached.count("/api/runs") == 100


def test_the_limit_on_open_files_is_raised():
    code = (
        "import resource\n"
        "from app.web.listening import allow_many_sockets\n"
        "_, highest = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, highest))\n"
        "allow_many_sockets()\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(highest, 65536) > 100)\n"
    )
    assert patience.run([sys.executable, "-c", code], cwd=ROOT, text=True).stdout == "True\n"


def test_headers_have_one_time_limit():
    first, second = asyncio.run(timers(b"GET / HTTP/1.1\r\n", b"Host: x\r\n"))
    assert first is second is not None


def test_each_part_of_a_body_has_a_time_limit():
    head = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\n"
    first, second, third = asyncio.run(timers(head, b"a", b"bc"))
    assert first is not second
    assert third is None
