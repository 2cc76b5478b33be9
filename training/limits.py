"""`python -m training.limits BYTES SECONDS MODULE ...` runs a module with limits on memory and CPU time.

The module cannot write files. With `--writing BYTES SECONDS FILE_BYTES MODULE ...` it can, up to FILE_BYTES each; then only
allocated memory counts, not mapped libraries and files. With `--reading PATHS BYTES SECONDS MODULE ...` it is confined
(training/jail): of all files it reads only these, a JSON list, and libraries.

Uploaded files are read this way, so that a malicious file only harms its own process. The limits are set here and not between
fork and exec, which is unsafe in a server with threads.
"""

import json
import resource
import runpy
import sys
from pathlib import Path

from training.jail.confinement import confine


def main(arguments: list[str]) -> None:
    reads: list[str] | None = None
    if arguments[0] == "--reading":
        reads, arguments = json.loads(arguments[1]), arguments[2:]
    if arguments[0] == "--writing":
        memory, seconds, length, module, *rest = arguments[1:]
        kind = resource.RLIMIT_DATA
    else:
        memory, seconds, module, *rest = arguments
        length, kind = "0", resource.RLIMIT_AS
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_FSIZE, int(length))
    _limit(resource.RLIMIT_CPU, int(seconds), spare=5)  # SIGXCPU comes first, which differs from a kill for memory
    _limit(kind, int(memory))
    if reads is not None:
        confine("a reader", map(Path, reads))
    sys.argv = [module, *rest]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _limit(which: int, soft: int, spare: int = 0) -> None:
    _, hard = resource.getrlimit(which)
    allowed = soft + spare if hard == resource.RLIM_INFINITY else min(soft + spare, hard)
    resource.setrlimit(which, (min(soft, allowed), allowed))


if __name__ == "__main__":
    main(sys.argv[1:])
