"""`python -m training.limits LIMITS MODULE ...` runs a module with limits on memory, CPU time and files.

LIMITS is JSON with the fields of `Limits` (training/limited.py). Uploaded files are read this way, so that a malicious file only
harms its own process. The limits are set here and not between fork and exec, which is unsafe in a server with threads.
"""

import importlib
import json
import os
import resource
import runpy
import sys
from pathlib import Path

from training.jail.confinement import confine


def main(text: str, module: str, *arguments: str) -> None:
    limits = json.loads(text)
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_CPU, limits["seconds"], spare=5)  # SIGXCPU comes first, which differs from a kill for memory
    _limit(resource.RLIMIT_DATA if limits["allocated"] else resource.RLIMIT_AS, limits["memory_bytes"])
    if limits["imports_first"]:
        _import(module)
    _limit(resource.RLIMIT_FSIZE, limits["file_bytes"])
    if limits["reads"] is not None:
        confine("a reader", [*map(Path, limits["reads"]), _package(module)])
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def _import(module: str) -> None:
    """Imports what a program imports: torch and what it imports try to write while they are imported."""
    importlib.import_module(module)
    del sys.modules[module]  # it runs as __main__
    if sys.platform == "linux" and len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        raise RuntimeError("a library has started threads while it was imported, which the jail would not hold")


def _package(module: str) -> Path:
    """The folder of the package with the program."""
    return Path(__file__).resolve().parents[1] / module.partition(".")[0]


def _limit(which: int, soft: int, spare: int = 0) -> None:
    _, hard = resource.getrlimit(which)
    allowed = soft + spare if hard == resource.RLIM_INFINITY else min(soft + spare, hard)
    resource.setrlimit(which, (min(soft, allowed), allowed))


if __name__ == "__main__":
    main(*sys.argv[1:])
