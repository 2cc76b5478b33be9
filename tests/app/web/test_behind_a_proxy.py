"""A server behind a proxy that names the users: forged headers name nobody, and no request hides in another."""

import os
import shutil
import socket
import subprocess
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import pytest
from forked_server import server
from patience import ended, eventually
from played_run import PlayedRun
from sqlmodel import update
from web import free_port

from worker.store import database, runs
from worker.store.tables import Run, Status

pytestmark = pytest.mark.slow

NGINX = """
daemon off; master_process off; pid {folder}/pid; error_log {folder}/error.log;
events {{ }}
http {{
  access_log off;
  keepalive_timeout 0; client_body_timeout 1s; client_header_timeout 1s;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
  map $http_x_key $who {{ default ""; key-of-bob bob; }}
  upstream lathe {{ server {lathe}; keepalive 1; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://lathe; proxy_http_version 1.1; proxy_request_buffering off;
      proxy_set_header Connection ""; proxy_set_header Host $http_host;
      proxy_set_header X-Remote-User $who; proxy_set_header X-Forwarded-For $remote_addr;
    }}
  }}
}}
"""
CADDY = """
{{
  admin off
  auto_https off
  storage file_system {folder}/store
  servers {{
    timeouts {{
      read_header 1s
      read_body 1s
      idle 1s
    }}
  }}
}}
:{port} {{
  bind 127.0.0.1
  map {{header.X-Key}} {{who}} {{
    key-of-bob bob
    default ""
  }}
  reverse_proxy {lathe} {{
    header_up X-Remote-User {{who}}
    header_up X-Forwarded-For {{remote_host}}
  }}
}}
"""
PROXIES = {
    "nginx": (NGINX, "nginx.conf", ["-p", "{folder}", "-c", "{file}", "-e", "{folder}/error.log"]),
    "caddy": (CADDY, "Caddyfile", ["run", "--config", "{file}", "--adapter", "caddyfile"]),
}
BOB = b"Host: HOST\r\nX-Key: key-of-bob\r\n"
FORGED = (
    b"X-Remote-User: alice\r\n",
    b"X-Remote-User: bob\r\nX-Remote-User: alice\r\n",
    b"x-remote-USER: alice\r\n",
    b"X_Remote_User: alice\r\n",
    b"X-Remote-User : alice\r\n",
    b"X-Other: a\r\n X-Remote-User: alice\r\n",
    b"Connection: X-Remote-User\r\nX-Remote-User: alice\r\n",
    b"X-Forwarded-User: alice\r\nRemote-User: alice\r\n",
    b"X-Forwarded-For: 127.0.0.1\r\nX-Real-IP: 127.0.0.1\r\nForwarded: for=127.0.0.1\r\n",
    b"Forwarded: for=127.0.0.1;host=localhost;proto=https\r\nVia: 1.1 x\r\n",
)


@dataclass(frozen=True)
class Address:
    """A server, by host and port. It closes connections by itself after an answer, or a second without one."""

    host: str

    def asks(self, request: bytes) -> bytes:
        """All that comes back for these bytes, until the server closes the connection or says nothing more."""
        host, port = self.host.split(":")
        answer = b""
        with socket.create_connection((host, int(port))) as connection:
            try:
                connection.sendall(request.replace(b"HOST", self.host.encode()))
                while piece := connection.recv(65536):
                    answer += piece
            except ConnectionError:
                pass
        return answer

    def get(self, path: str, headers: bytes = BOB) -> bytes:
        return self.asks(b"GET %s HTTP/1.1\r\n%sConnection: close\r\n\r\n" % (path.encode(), headers))


@contextmanager
def proxied(name, folder, lathe):
    """A proxy in front of a server; it signs the user in whose key a request has."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        pytest.skip(f"needs {name} (Debian: apt-get install {name})")
    proxy = Address(f"127.0.0.1:{free_port()}")
    folder.mkdir()
    configuration, file, options = PROXIES[name]
    values = {"folder": folder, "file": folder / file, "lathe": lathe.host, "port": proxy.host.split(":")[1]}
    (folder / file).write_text(configuration.format(**values))
    command = [program, *(option.format(**values) for option in options)]
    with (folder / "log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            eventually(lambda: answers(proxy), [process])
            yield proxy
        finally:
            process.kill()
            ended(process)


def answers(address):
    try:
        return b"200 OK" in address.get("/healthz")
    except OSError:
        return False


def smuggled(run):
    """A request that only its proxy could send for alice."""
    return (
        b"POST /api/runs/%s/stop HTTP/1.1\r\nHost: HOST\r\nX-Remote-User: alice\r\nContent-Length: 0\r\n\r\n"
        % run.encode()
    )


def hiding(run):
    """Requests of bob within which another one hides, where two servers disagree about the end of the first."""
    hidden = smuggled(run)
    post = b"POST /api/checks HTTP/1.1\r\n" + BOB
    chunked = b"0\r\n\r\n" + hidden
    both = b"Content-Length: %d\r\n%s\r\n\r\n"
    for coding in (
        b"Transfer-Encoding: chunked", b"Transfer-Encoding : chunked", b"Transfer-Encoding:\tchunked",
        b"Transfer-Encoding: xchunked", b"Transfer-Encoding: identity", b"Transfer-Encoding:\r\n chunked",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"Transfer-Encoding: chunked, identity",
        b"X: a\nTransfer-Encoding: chunked", b"Transfer-Encoding: \x0bchunked",
    ):  # fmt: skip
        yield f"CL.TE {coding!r}", post + both % (len(chunked), coding) + chunked
    yield "TE.CL", post + both % (4, b"Transfer-Encoding: chunked") + b"%x\r\n%s\r\n0\r\n\r\n" % (len(hidden), hidden)
    for length in (
        b"0\r\nContent-Length: %d",
        b"%d\r\nContent-Length: 0",
        b"0, %d",
        b"+%d",
        b"-%d",
        b"%d abc",
        b"0x%x",
    ):
        yield f"length {length!r}", post + b"Content-Length: " + length % len(hidden) + b"\r\n\r\n" + hidden
    for size in (b"0x0", b"-1", b"0;a=\n", b"00000000000000000", b"0\n", b"0 \r\n\r\n", b"ffffffffffffffff"):
        yield f"chunk {size!r}", post + b"Transfer-Encoding: chunked\r\n\r\n" + size + b"\r\n\r\n" + hidden
    yield "a body of GET", b"GET /api/runs HTTP/1.1\r\n" + BOB + b"Content-Length: %d\r\n\r\n" % len(hidden) + hidden
    yield "a bare line feed", b"GET /healthz HTTP/1.1\n" + BOB.replace(b"\r", b"") + b"X: a\r\r\n\r\n" + hidden
    yield "a NUL", b"GET /healthz HTTP/1.1\r\n" + BOB + b"X: a\0b\r\n\r\n" + hidden
    yield "a line end in the path", b"GET /healthz%0d%0aX-Remote-User:%20alice HTTP/1.1\r\n" + BOB + b"\r\n"
    yield "an absolute address", b"GET http://127.0.0.1/api/runs HTTP/1.1\r\n" + BOB + b"\r\n"
    yield "two hosts", b"GET /api/runs HTTP/1.1\r\n" + BOB + b"Host: evil.example\r\n\r\n"
    yield (
        "an upgrade",
        b"GET /api/runs HTTP/1.1\r\n" + BOB + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\n\r\n" + hidden,
    )
    yield "an expectation", post + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}" + b"0\r\n\r\n"
    yield "a head of 100 kB", b"GET /healthz HTTP/1.1\r\n" + BOB + b"X: " + b"a" * 100_000 + b"\r\n\r\n"
    yield "10,000 headers", b"GET /healthz HTTP/1.1\r\n" + BOB + b"X: a\r\n" * 10_000 + b"\r\n"


@pytest.fixture(scope="module")
def lathe(tmp_path_factory):
    """A server that trusts a proxy on this machine."""
    settings = {
        "TRUSTED_PROXIES": "127.0.0.1",
        "PROXY_USER_HEADER": "X-Remote-User",
        "VISIBILITY": "own",
        "REQUEST_SECONDS": "1",
    }
    home = tmp_path_factory.mktemp("proxied") / "home"
    with server(home, **settings) as served:
        yield Address(served.host), home


@pytest.fixture
def run(lathe, monkeypatch):
    """A waiting run of alice's."""
    from environment import use

    use(monkeypatch, DATA_DIR=str(lathe[1]))
    database.dispose()
    run = PlayedRun("of alice").id
    with database.write() as session:
        session.exec(update(Run).where(Run.id == run).values(owner="alice"))
    yield run
    with database.read() as session:
        assert session.get(Run, run).status is Status.QUEUED
    database.dispose()


@pytest.fixture(params=PROXIES)
def proxy(request, lathe, tmp_path):
    with proxied(request.param, tmp_path / "proxy", lathe[0]) as started:
        yield started


def test_a_forged_header_names_nobody_through_the_proxy(proxy, run, subtests):
    for forged in FORGED:
        with subtests.test(forged.decode()):
            assert b"<span>alice</span>" not in proxy.get("/start", BOB + forged)
            assert b"200 OK" not in proxy.get("/start", b"Host: HOST\r\n" + forged)
    assert b"<span>bob</span>" in proxy.get("/start")


def test_no_request_hides_in_another_one_through_the_proxy(proxy, run, subtests):
    for name, request in hiding(run):
        with subtests.test(name):
            answer = proxy.asks(request)
            assert b'"status":"stopped"' not in answer and b" 500 " not in answer
            for _ in range(2):  # the proxy uses the same connection for them
                own = proxy.get("/start")
                assert own.count(b"HTTP/1.1 200") == 1 and b"<span>bob</span>" in own


def test_no_request_hides_in_another_one_from_a_proxy_that_passes_all_bytes_on(lathe, run, subtests):
    """As from a proxy that reads heads differently: it adds the user to the first head only."""

    def asked(request):
        seen = request.replace(b"X-Key: key-of-bob", b"X-Remote-User: bob").replace(b"X-Remote-User: alice\r\n", b"")
        return lathe[0].asks(seen)

    names, requests = zip(*hiding(run), strict=True)
    with ThreadPoolExecutor(len(names)) as pool:
        answers_to = dict(zip(names, pool.map(asked, requests), strict=True))
    for name, answer in answers_to.items():
        with subtests.test(name):
            assert b" 500 " not in answer
            if "TE" in name or "length" in name:
                assert answer.count(b"HTTP/1.1 ") == 1 and b"HTTP/1.1 4" in answer, answer


def test_a_proxy_that_adds_the_user_to_the_browser_s_own_header_is_refused(lathe):
    twice = b"Host: HOST\r\nX-Remote-User: alice\r\nX-Remote-User: bob\r\n"
    assert b"HTTP/1.1 401" in lathe[0].get("/start", twice)
    assert b"HTTP/1.1 401" in lathe[0].get("/start", b"Host: HOST\r\nX-Remote-User: alice, bob\r\n")


FORWARDED_HOSTS = ("evil.example", "[", "a, evil.example", "evil.example\tb", "evil.example/x?")


def forwarded(host):
    return (
        b"X-Forwarded-Host: %s\r\nX-Forwarded-Prefix: //evil.example\r\n"
        b"X-Forwarded-Proto: javascript\r\nX-Forwarded-Port: 99999\r\n" % host.encode()
    )


def assert_no_foreign_scripts(address, headers):
    for path in ("/", "/config", "/theme.css"):
        answer = address.get(path, headers)
        assert b"HTTP/1.1 200" in answer and b"evil.example" not in answer


@pytest.mark.parametrize("host", FORWARDED_HOSTS)
def test_no_page_loads_scripts_from_a_forwarded_host(lathe, host):
    assert_no_foreign_scripts(lathe[0], b"Host: HOST\r\nX-Remote-User: bob\r\n" + forwarded(host))


def test_no_page_loads_scripts_from_a_forwarded_host_through_the_proxy(proxy, subtests):
    for host in FORWARDED_HOSTS:
        with subtests.test(host):
            assert_no_foreign_scripts(proxy, BOB + forwarded(host))


def test_a_stream_passes_the_proxy_as_it_is_written(proxy, run):
    own = PlayedRun("of bob").id
    with database.write() as session:
        session.exec(update(Run).where(Run.id == own).values(owner="bob"))
    head = f"GET /api/runs/{own}/live HTTP/1.1\r\n".encode() + BOB.replace(b"HOST", proxy.host.encode()) + b"\r\n"
    host, port = proxy.host.split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head)
        until(connection, b'"status":"queued"')
        with database.write() as session:
            runs.request_stop(session=session, run_id=own)
        until(connection, b'"status":"stopped"')


def until(connection, text):
    """What comes on a connection until this text does."""
    received = b""
    while text not in received:
        piece = connection.recv(65536)
        assert piece, received
        received += piece
    return received
