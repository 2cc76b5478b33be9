"""Which user of this machine has opened a connection, as Linux tells it in /proc/net/tcp and /proc/net/tcp6."""

import sys
from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

Address = IPv4Address | IPv6Address
Place = tuple[Address, int]
"""An address with a port; an IPv4 address is IPv4 also where it was written as IPv6 (::ffff:127.0.0.1)."""

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_OVERFLOW = Path("/proc/sys/kernel/overflowuid")
_ESTABLISHED = "01"


def uid_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id of the process at the `client` end of a loopback connection to `server`.

    None where it cannot be known: another machine or network namespace, no /proc, or a client that has closed its end
    already. The kernel lists a socket that no process holds any more under user 0, whoever opened it.
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
    """The address that a text writes, IPv4 where it is that within IPv6; None where it is none."""
    try:
        found = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found


def is_loopback(host: str) -> bool:
    """Whether an address to listen on is reached from this machine alone."""
    address = plain(host)
    return host.lower() == "localhost" if address is None else address.is_loopback


def names_loopback(host: str) -> bool:
    """Whether a Host header, with or without a port, names this machine by an address of loopback."""
    return is_loopback(hostname(host))


def hostname(host: str) -> str:
    """The name in a Host header, in lower case and without its port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:  # a bracket that is not closed
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
    """The user id of a table's line, where that is the open socket with these ends."""
    fields = line.split()
    if len(fields) < 10 or fields[3] != _ESTABLISHED or fields[9] == "0":
        return None
    return int(fields[7]) if (_written(fields[1]), _written(fields[2])) == ends else None


def _written(text: str) -> Place:
    """An end as the tables write it: each 32-bit word of the address in the machine's byte order, in hexadecimal."""
    digits, _, port = text.partition(":")
    words = [bytes.fromhex(digits[start : start + 8]) for start in range(0, len(digits), 8)]
    packed = b"".join(word[::-1] if sys.byteorder == "little" else word for word in words)
    address = ip_address(packed)
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address, int(port, 16)


def _overflow_uid() -> int | None:
    """The id under which users of another user namespace appear, all of them alike."""
    try:
        return int(_OVERFLOW.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
