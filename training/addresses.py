"""The address at which the processes of this machine reach each other, and how an address is written in a URL."""

import contextlib
import socket
from ipaddress import ip_address


def loopback() -> str:
    """127.0.0.1, or ::1 where this machine has no IPv4."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET) as probe:
        probe.bind(("127.0.0.1", 0))
        return "127.0.0.1"
    return "::1"


def family(host: str) -> socket.AddressFamily:
    """The family of sockets that listen on `host`, an IP address or a name."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def authority(host: str, port: int) -> str:
    """HOST:PORT as URLs have it: an IPv6 address is in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """True for localhost and a loopback address, also an IPv4 one written as IPv6 (::ffff:127.0.0.1)."""
    try:
        address = ip_address(host)
    except ValueError:  # a name
        return host.lower() == "localhost"
    return (getattr(address, "ipv4_mapped", None) or address).is_loopback
