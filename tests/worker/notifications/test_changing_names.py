"""A webhook's name may lead elsewhere each time it is asked for (DNS rebinding): what was checked is what is connected to."""

import itertools
import socket

import httpcore
import pytest

from worker.notifications import addresses
from worker.notifications.addresses import NotSent, Webhook
from worker.notifications.http_post import post

PUBLIC, LOOPBACK, METADATA, MAPPED = "8.8.8.8", "127.0.0.1", "169.254.169.254", "::ffff:10.0.0.1"


@pytest.fixture
def connected(monkeypatch):
    """The addresses to which a connection was tried."""
    tried = []

    def connect_tcp(_self, host, *_args, **_named):
        tried.append(host)
        raise httpcore.ConnectError("refused")

    monkeypatch.setattr(httpcore.SyncBackend, "connect_tcp", connect_tcp)
    return tried


def resolver(monkeypatch, *answers):
    """Lets a name lead to one of these lists of addresses after the other, again and again."""
    following = itertools.cycle(answers)

    def getaddrinfo(_host, port, *_args, **_named):
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in next(following)]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", getaddrinfo)


@pytest.mark.parametrize("inside", [LOOPBACK, METADATA, MAPPED, "fd00::1", "fe80::1%eth0", "0.0.0.0"])
@pytest.mark.parametrize("first", [True, False])
def test_a_name_that_changes_leads_to_public_addresses_only(connected, monkeypatch, inside, first):
    answers = [[PUBLIC], [inside]] if first else [[inside], [PUBLIC]]
    resolver(monkeypatch, *answers)
    hook = Webhook("https://changes.example/hook", "changes.example", 443, free=False)
    for _ in range(4):
        with pytest.raises(NotSent):
            post(hook, {}, b"{}")
    assert connected == [PUBLIC] * 2


def test_one_address_inside_among_others_refuses_the_name(connected, monkeypatch):
    resolver(monkeypatch, [PUBLIC, LOOPBACK])
    hook = Webhook("https://changes.example/hook", "changes.example", 443, free=False)
    with pytest.raises(NotSent, match="not at a public address"):
        post(hook, {}, b"{}")
    assert connected == []


def test_what_was_public_when_it_was_added_is_checked_again(connected, monkeypatch):
    resolver(monkeypatch, [PUBLIC], [LOOPBACK])
    hook = addresses.webhook("https://changes.example/hook", trusted=False)
    addresses.check_reachable(hook)
    with pytest.raises(NotSent, match="not at a public address"):
        post(hook, {}, b"{}")
    assert connected == []
