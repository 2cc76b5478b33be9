"""Programs in a network of their own that has no IPv4."""

import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT

_PREPARE = 'ip link set lo up && ip addr del 127.0.0.1/8 dev lo && exec "$@"'


def python(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Runs the interpreter there; skips the test without the permission to make such a network."""
    command = ["unshare", "--net", "sh", "-ec", _PREPARE, "sh", sys.executable, *map(str, arguments)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    except FileNotFoundError:
        pytest.skip("needs unshare and ip")
    if "unshare:" in done.stderr:
        pytest.skip("a network of its own needs root")
    return done
