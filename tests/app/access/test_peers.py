"""The user of a connection, tested with real sockets of this machine."""

import os
import socket
import sys

import pytest

from app.access import peers
from app.access.peers import uid_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has sock_diag")


def connected(server_family, listening, client_family, address):
    """Returns a listener, and the client's and the server's socket of a connection to it."""
    listener = socket.socket(server_family, socket.SOCK_STREAM)
    if server_family == socket.AF_INET6:
        listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    listener.bind((listening, 0))
    listener.listen()
    client = socket.socket(client_family, socket.SOCK_STREAM)
    client.connect((address, listener.getsockname()[1]))
    return listener, client, listener.accept()[0]


def asked(server):
    return uid_of(server.getpeername()[:2], server.getsockname()[:2])


FOUR, SIX = socket.AF_INET, socket.AF_INET6


@pytest.mark.parametrize(
    "ends",
    [
        (FOUR, "127.0.0.1", FOUR, "127.0.0.1"),
        (FOUR, "127.0.0.1", SIX, "::ffff:127.0.0.1"),
        (SIX, "::1", SIX, "::1"),
        (SIX, "::", FOUR, "127.0.0.1"),
        (SIX, "::", SIX, "::ffff:127.0.0.1"),
        (SIX, "::", SIX, "::1"),
    ],
)
def test_the_user_of_a_loopback_connection_is_known(ends):
    try:
        listener, client, server = connected(*ends)
    except OSError:
        pytest.skip("this machine has no IPv6")
    with listener, client, server:
        assert asked(server) == os.getuid()


def test_a_disconnected_client_has_no_user():
    """The kernel lists a socket without a process under user 0, whoever owned it."""
    listener, client, server = connected(FOUR, "127.0.0.1", FOUR, "127.0.0.1")
    with listener, server:
        client.close()
        assert asked(server) is None


def test_an_address_outside_loopback_has_no_user():
    assert uid_of(("10.0.0.1", 1), ("10.0.0.2", 2)) is None
    assert uid_of(("testclient", 1), ("testserver", 2)) is None


def test_where_the_kernel_does_not_answer_no_user_is_known(monkeypatch):
    monkeypatch.setattr(peers, "_SOCK_DIAG", 31)
    listener, client, server = connected(FOUR, "127.0.0.1", FOUR, "127.0.0.1")
    with listener, client, server:
        assert asked(server) is None


def test_a_user_of_another_namespace_is_unknown(monkeypatch, tmp_path):
    """The kernel shows all of them under one id, which may be the id of the server's user."""
    overflow = tmp_path / "overflowuid"
    overflow.write_text(f"{os.getuid()}\n")
    monkeypatch.setattr(peers, "_OVERFLOW", overflow)
    listener, client, server = connected(FOUR, "127.0.0.1", FOUR, "127.0.0.1")
    with listener, client, server:
        assert asked(server) is None


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1:7860", True),
        ("[::1]:80", True),
        ("localhost", True),
        ("lathe.lan", False),
        ("[::1", False),
        ("", False),
        ("127.0.0.1.evil.example", False),
    ],
)
def test_a_host_header_that_names_loopback(host, loopback):
    assert peers.names_loopback(host) is loopback
