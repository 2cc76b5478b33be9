"""The address at which other machines reach this one, and the network interface that has it."""

import contextlib
import socket

import psutil
from sqlalchemy import make_url

from training.addresses import loopback
from worker.settings import get_settings

_ANY_PORT = 9  # nothing is sent: connecting a datagram socket only chooses a route


def own_address() -> str:
    """LATHE_ADDRESS; else the address by which this machine reaches the database's server, which every worker reaches."""
    settings = get_settings()
    if settings.address:
        return settings.address
    host = make_url(settings.sqlalchemy_url).host
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((host or loopback(), _ANY_PORT))
            return str(probe.getsockname()[0])
    return loopback()  # no route, or a name that cannot be resolved


def interface_of(address: str) -> str | None:
    """The name of the interface with this address, or None if this machine has none."""
    found = (
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(one.address.partition("%")[0] == address for one in addresses)
    )
    return next(found, None)


def network_environment(address: str) -> dict[str, str]:
    """Variables with which gloo and NCCL use the interface of `address`; they would choose by the host's name, or the first one."""
    name = interface_of(address)
    return {} if name is None else {"GLOO_SOCKET_IFNAME": name, "NCCL_SOCKET_IFNAME": name}


def free_port(address: str = "") -> int:
    """A TCP port that is free now at `address`, or at every one."""
    with socket.socket() as listener:
        listener.bind((address, 0))
        return int(listener.getsockname()[1])
