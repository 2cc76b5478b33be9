"""`python -m worker.limited BYTES SECONDS MODULE ...` runs a module with limits on its memory and processor time.

A file that somebody uploaded is read so: whatever it does to its reader, it does to a process of its own. The limits are
set here and not between fork and exec, which is not safe in a server with threads.
"""

import resource
import runpy
import sys


def main(arguments: list[str]) -> None:
    memory, seconds, module, *rest = arguments
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, 0)
    _limit(resource.RLIMIT_CPU, int(seconds), spare=5)  # SIGXCPU first, which tells it from a kill for memory
    _limit(resource.RLIMIT_AS, int(memory))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _limit(which: int, soft: int, spare: int = 0) -> None:
    _, hard = resource.getrlimit(which)
    allowed = soft + spare if hard == resource.RLIM_INFINITY else min(soft + spare, hard)
    resource.setrlimit(which, (min(soft, allowed), allowed))


if __name__ == "__main__":
    main(sys.argv[1:])
