"""The addresses of this machine, also where it has no IPv4."""

import subprocess
import sys

import pytest

PROGRAM = "from worker.machine.address import loopback, own_address; print(loopback(), own_address())"
WITHOUT_IPV4 = 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$0" -c "$1"'


def test_a_machine_without_ipv4_reaches_itself_by_ipv6(home: object) -> None:
    command = ["unshare", "--net", "sh", "-ec", WITHOUT_IPV4, sys.executable, PROGRAM]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("needs unshare and ip")
    if "unshare" in done.stderr:
        pytest.skip("a network of its own needs root")
    assert done.stdout.split() == ["::1", "::1"], done.stderr
    here = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert here.stdout.split()[0] == "127.0.0.1"
