"""Starts modules in processes with limits on memory, CPU time and files (training/limits.py sets them). No torch."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

_ROOT = Path(__file__).resolve().parent.parent  # the checkout, or site-packages
FOLDER = Path(__file__).resolve().parent
"""The current folder of programs that load models: a library takes a hub id for a path if the current folder has one of this name,
and this one has nobody's."""
ARROW = {"ARROW_DEFAULT_MEMORY_POOL": "system", "JE_ARROW_MALLOC_CONF": "background_thread:false"}
"""Without threads of its allocator: the jail holds only the thread that enters it."""
_ALWAYS = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "TMPDIR")


@dataclass(frozen=True)
class Limits:
    """`seconds` of CPU time; `file_bytes`: the longest file that may be written, 0 if none may be.

    `memory_bytes` is the address space, or, if it is `allocated`, what the program allocates, without mapped libraries and files.
    With `reads` the program is confined (training/jail): of all files it only reads these, those below these folders, and
    libraries, and it writes none. `imports_first`: it is confined after its imports.
    """

    memory_bytes: int
    seconds: int
    file_bytes: int = 0
    allocated: bool = False
    reads: tuple[Path, ...] | None = None
    imports_first: bool = False

    @property
    def argument(self) -> str:
        """As `training.limits` reads them."""
        reads = None if self.reads is None else [str(path.absolute()) for path in self.reads]
        return json.dumps({**vars(self), "reads": reads})


def start_limited(
    module: str,
    arguments: Sequence[str],
    limits: Limits,
    *,
    variables: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.PIPE,
    stderr: int | IO[Any] = subprocess.PIPE,
    **options: Any,
) -> subprocess.Popen[bytes]:
    """Starts a program in `FOLDER`: paths in `arguments` must be absolute.

    `env` is added to its environment; `options` go to `subprocess.Popen`.
    """
    command = [sys.executable, "-m", "training.limits", limits.argument, module, *arguments]
    # The hub's client would fail at a token's file that it may not read, and wait for a network that is not there.
    without_hub = {} if limits.reads is None else {"HF_TOKEN_PATH": os.devnull, "HF_HUB_OFFLINE": "1"}
    variables_seen = environment(*variables) | without_hub | dict(env or {})
    return subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=stderr, env=variables_seen, cwd=FOLDER, **options
    )


def environment(*variables: str) -> dict[str, str]:
    """What Python needs of the environment, and `variables`: no token and no address unless they are named."""
    inherited = {name: os.environ[name] for name in (*_ALWAYS, *variables) if name in os.environ}
    python = {"PYTHONPATH": str(_ROOT), "PYTHONSAFEPATH": "1", "PYTHONUTF8": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    return inherited | python | {"OMP_NUM_THREADS": "1", **ARROW}
