"""`python -m worker.limited BYTES SECONDS MODULE ...` runs a module with limits on its memory and processor time.

It writes no file. With `--writing BYTES SECONDS FILE_BYTES MODULE ...` it may, none longer than that, and its memory is what
it allocates: what it maps (libraries, files) does not count.

A file that somebody uploaded is read so: whatever it does to its reader, it does to a process of its own. The limits are
set here and not between fork and exec, which is not safe in a server with threads.
"""

import resource
import runpy
import sys


def main(arguments: list[str]) -> None:
    if arguments[0] == "--writing":
        memory, seconds, length, module, *rest = arguments[1:]
        kind = resource.RLIMIT_DATA
    else:
        memory, seconds, module, *rest = arguments
        length, kind = "0", resource.RLIMIT_AS
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, int(length))
    _limit(resource.RLIMIT_CPU, int(seconds), spare=5)  # SIGXCPU first, which tells it from a kill for memory
    _limit(kind, int(memory))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _limit(which: int, soft: int, spare: int = 0) -> None:
    _, hard = resource.getrlimit(which)
    allowed = soft + spare if hard == resource.RLIM_INFINITY else min(soft + spare, hard)
    resource.setrlimit(which, (min(soft, allowed), allowed))


if __name__ == "__main__":
    main(sys.argv[1:])
