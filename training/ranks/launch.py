"""accelerate's launcher; no other machine can reach what it starts on this one: `python -m training.ranks.launch`.

Ranks find each other through a TCPStore of torch, which listens on all addresses and accepts every client. Here, a store for the
ranks of one machine listens on loopback only.
"""

import os
import socket
import sys
from subprocess import CalledProcessError
from typing import Any

from accelerate.commands import launch
from torch._C._distributed_c10d import TCPStore
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import static_tcp_rendezvous

from training.addresses import family, is_loopback, loopback
from training.errors import EXPECTED_EXIT


def store(host: str, port: int, world_size: int, is_master: bool, *arguments: Any, **options: Any) -> TCPStore:
    """A TCPStore, which listens only on `host` if that is a loopback address. Raises OSError if the port is in use."""
    if is_master and is_loopback(host):
        # torch closes the file descriptor.
        options["master_listen_fd"] = socket.create_server((host, port), family=family(host)).detach()
    return TCPStore(host, port, world_size, is_master, *arguments, **options)


def main() -> None:
    """Runs `accelerate launch` with this process's arguments. After an error that a user can fix, which the rank has printed, it
    ends without a traceback of its own."""
    vars(static_tcp_rendezvous)["TCPStore"] = store
    # torchrun's default for the ranks of one machine; accelerate gives it the address only of several.
    os.environ.setdefault("PET_MASTER_ADDR", loopback())
    try:
        launch.main()
    except CalledProcessError as error:  # of a single rank
        _end_quietly_if_expected(error.returncode)
        raise
    except ChildFailedError as error:
        _end_quietly_if_expected(error.get_first_failure()[1].exitcode)
        raise


def _end_quietly_if_expected(status: int) -> None:
    if status == EXPECTED_EXIT:
        sys.exit(1)


if __name__ == "__main__":
    main()
