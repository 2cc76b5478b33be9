"""The local user who opened a connection, as the kernel tells for one socket (Linux, sock_diag(7)).

/proc/net/tcp lists all sockets of the machine; with thousands of them, reading it for each connection stops the server.
"""

import errno
import os
import socket
import struct
from functools import cache, lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

from training.addresses import is_loopback

PEER_UID = "peer_uid"
"""The key of a request's state for the user id of its client, None if unknown."""

Address = IPv4Address | IPv6Address
Place = tuple[Address, int]
"""An address with a port; IPv4 addresses mapped to IPv6 (::ffff:127.0.0.1) are stored as IPv4."""

_OVERFLOW = Path("/proc/sys/kernel/overflowuid")
_SOCK_DIAG, _BY_FAMILY, _REQUEST, _ERROR = 4, 20, 1, 2  # linux/netlink.h, linux/sock_diag.h
_HEADER = struct.Struct("=IHHII")  # nlmsghdr: length, type, flags, sequence, port
_QUESTION = struct.Struct("=BBBBI")  # inet_diag_req_v2: family, protocol, extensions, padding, states
_SOCKET = struct.Struct("!HH16s16s12s")  # inet_diag_sockid: ports, addresses, interface and cookie
_ANSWER = struct.Struct("=BBBB48sIIIII")  # inet_diag_msg: family, state, ..., user, inode
_ANY = struct.pack("=III", 0, 0xFFFFFFFF, 0xFFFFFFFF)  # every interface, no cookie
_ESTABLISHED = 1


def uid_of(client: tuple[str, int], server: tuple[str, int]) -> int | None:
    """The user id of the process at the `client` end of a loopback connection to `server`.

    None if unknown: another machine or network namespace, another system, or a client that has closed its end, which the kernel
    then lists under user 0.
    """
    near, far = _place(client), _place(server)
    if near is None or far is None or not (near[0].is_loopback and far[0].is_loopback):
        return None
    try:
        uid = _owner(near, far)
    except (OSError, AttributeError, struct.error):  # no such question on this system
        return None
    return None if uid == _overflow_uid(_OVERFLOW) else uid


@lru_cache
def plain(host: str) -> Address | None:
    """The address in a text, with IPv4-mapped IPv6 as IPv4; None if it is not an address."""
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return None
    return address.ipv4_mapped or address if isinstance(address, IPv6Address) else address


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


def _owner(near: Place, far: Place) -> int | None:
    """The user id of the open socket from `near` to `far`; None if there is none."""
    family = socket.AF_INET if near[0].version == 4 else socket.AF_INET6
    ends = _SOCKET.pack(near[1], far[1], _padded(near[0]), _padded(far[0]), _ANY)
    question = _QUESTION.pack(family, socket.IPPROTO_TCP, 0, 0, 1 << _ESTABLISHED) + ends
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, _SOCK_DIAG) as kernel:
        kernel.send(_HEADER.pack(_HEADER.size + len(question), _BY_FAMILY, _REQUEST, 1, 0) + question)
        answer = kernel.recv(4096, socket.MSG_DONTWAIT)
    kind = _HEADER.unpack_from(answer)[1]
    if kind == _ERROR:
        number = -struct.unpack_from("=i", answer, _HEADER.size)[0]
        if number == errno.ENOENT:
            return None
        raise OSError(number, os.strerror(number))
    _, state, *_, uid, inode = _ANSWER.unpack_from(answer, _HEADER.size)
    return uid if state == _ESTABLISHED and inode else None


def _padded(address: Address) -> bytes:
    return address.packed.ljust(16, b"\0")


@cache
def _overflow_uid(file: Path) -> int | None:
    """The id that stands for all users of other user namespaces."""
    try:
        return int(file.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
