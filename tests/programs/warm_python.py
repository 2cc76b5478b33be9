"""Stands in for the Python interpreter: `warm_python.py SOCKET EXECUTABLE -m MODULE ...` runs the program in a fork of the warm
launcher, which starts others by EXECUTABLE.

Signals, standard streams, environment, folder and exit code are those of this process; when it is killed, the fork ends with it.
"""

import json
import os
import signal
import socket
import sys


def main(address: str, executable: str, program: list[str]) -> int:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        request = {"program": program, "executable": executable, "env": dict(os.environ)}
        request["folder"] = os.getcwd()  # noqa: PTH109 importing pathlib takes longer than all else
        socket.send_fds(connection, [json.dumps(request).encode() + b"\n"], [0, 1, 2])
        with connection.makefile() as answers:
            fork = int(answers.readline())
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
                signal.signal(number, lambda number, _: os.kill(fork, number))
            code = answers.readline()
    if not code:
        signal.raise_signal(signal.SIGKILL)  # by a signal, as the fork
    return int(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], sys.argv[3:]))
