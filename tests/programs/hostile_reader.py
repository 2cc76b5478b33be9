"""Replaces `training.data.inspection` for a harmful file; the file says what goes wrong."""

import ctypes
import signal
import sys
import time
from pathlib import Path


def main() -> None:
    what = Path(sys.argv[1]).read_text()
    if what == "loop":
        while True:
            pass
    if what == "sleep":
        time.sleep(60)
    if what == "slow":  # more time than three times a limit of 2 s, and less than that of a processor
        for _ in range(20):
            time.sleep(0.35)
            sum(range(1_000_000))
        sys.stdout.write("1")
    if what == "late":  # its input is longer than a pipe holds
        time.sleep(1.2)
        sys.stdout.write(str(len(sys.stdin.read())))
    if what == "killed":
        signal.raise_signal(signal.SIGKILL)
    if what == "memory":
        bytearray(8 * 2**30)
    if what == "crash":
        ctypes.string_at(0)
    if what == "flood":
        sys.stdout.write('{"ok": true, "columns": "' + "x" * (5 * 2**20) + '"}')
    if what == "fail":
        raise RuntimeError("a mistake of ours")
    if what == "write":
        with Path(sys.argv[1]).open("a") as stream:
            stream.write("x")


main()
