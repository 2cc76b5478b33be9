"""Addresses as URLs have them, and which of them only this machine can reach."""

from urllib.parse import urlsplit

import pytest

from training.addresses import authority, is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "2001:db8::2"])
def test_an_address_in_a_url_is_read_as_it_was(host: str) -> None:
    parts = urlsplit(f"http://{authority(host, 7860)}")
    assert (parts.hostname, parts.port) == (host, 7860)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("LocalHost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("example.org", False),
        ("", False),
    ],
)
def test_loopback_is_what_only_this_machine_reaches(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
