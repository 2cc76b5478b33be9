"""The addresses of this machine, also where it has no IPv4."""

import without_ipv4

from training.addresses import loopback

PROGRAM = """
from training.addresses import loopback
from worker.machine.address import own_address
from worker.settings import Settings
print(loopback(), own_address(), Settings().host, Settings().serve_host)
"""


def test_a_machine_without_ipv4_reaches_itself_by_ipv6(home: object) -> None:
    done = without_ipv4.python("-c", PROGRAM)
    assert done.stdout.split() == ["::1"] * 4, done.stderr
    assert loopback() == "127.0.0.1"
