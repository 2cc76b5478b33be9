"""The local user who opened a connection, from /proc/net/tcp and /proc/net/tcp6 (Linux)."""

import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

PEER_UID = "peer_uid"
"""The key of a request's state for the user id of its client, None if unknown."""

Address = IPv4Address | IPv6Address
Place = tuple[Address, int]
"""An address with a port; IPv4 addresses mapped to IPv6 (::ffff:127.0.0.1) are stored as IPv4."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")
_ESTABLISHED = "01"


def uid_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id of the process at the `client` end of a loopback connection to `server`.

    None if unknown: another machine or network namespace, no /proc, or a client that has already closed its end. The kernel
    lists a socket without a process under user 0, whoever opened it.
    """
    ends = _place(client), _place(server)
    if ends[0] is None or ends[1] is None or not (ends[0][0].is_loopback and ends[1][0].is_loopback):
        return None
    for line in _lines():
        uid = _owner(line, ends)
        if uid is not None:
            return None if uid == _overflow_uid() else uid
    return None


def plain(host: str) -> Address | None:
    """The address in a text, with IPv4-mapped IPv6 as IPv4; None if it is not an address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


def is_loopback(host: str) -> bool:
    """True if only this machine can reach an address to listen on."""
    address = plain(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def names_loopback(host: str) -> bool:
    """True if a Host header, with or without a port, names a loopback address."""
    return is_loopback(hostname(host))


def hostname(host: str) -> str:
    """The name in a Host header, in lower case, without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # an unclosed bracket
        return ""


def _place(end: tuple[str, int]) -> Place | None:
    address = plain(end[0])
    return None if address is None else (address, end[1])


def _lines() -> Iterator[str]:
    for table in _TABLES:
        try:
            yield from table.read_text(encoding="ascii").splitlines()[1:]
        except OSError:
            continue


def _owner(line: str, ends: tuple[Place | None, Place | None]) -> int | None:
    """The user id in a line of the table, if it is the open socket with these ends."""
    fields = line.split()
    if len(fields) < 10 or fields[3] != _ESTABLISHED or fields[9] == "0":
        return None
    return int(fields[7]) if (_parsed(fields[1]), _parsed(fields[2])) == ends else None


def _parsed(text: str) -> Place:
    """An end of the table: its address is hexadecimal, each 32-bit word in the machine's byte order."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[start : start + 8]) for start in range(0, len(digits), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, int(port, 16)


def _overflow_uid() -> int | None:
    """The id that stands for all users of other user namespaces."""
    try:
        return int(_OVERFLOW.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
