"""`python -m training.ranks.compile_operators [SECONDS]` compiles ahead the operators that ZeRO would compile at its first use.

A worker starts it in the background. It waits for SECONDS, runs at the lowest priority on one processor, and ends at once if
everything is compiled. It prints failures; the run that needs the operator reports them again.
"""

import os
import signal
import sys
import time
import traceback

import psutil

from training import operator_cache

# DeepSpeed's builders and operator names. Others depend on the GPU model, and querying it would take GPU memory.
_OPERATORS = {"CPUAdamBuilder": "cpu_adam"}

_FREE_BYTES = 4 * 2**30  # a compiler takes up to 1.5 GB, which a run may need


def main(arguments: list[str]) -> int:
    """Compiles missing operators. Returns the exit status: 1 if one of them failed."""
    signal.signal(signal.SIGTERM, _end_with_compilers)
    _lower_priority()
    time.sleep(float(arguments[0]) if arguments else 0)
    operator_cache.use_own_folder()
    missing = [
        builder
        for builder, name in _OPERATORS.items()
        if not operator_cache.usable(operator_cache.folder_of(name), name)
    ]
    if not missing:
        return 0
    with operator_cache.ahead_file().open("a") as lock:
        if not operator_cache.take(lock):  # another worker's process compiles
            return 0
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return _compile(missing)


def _compile(builders: list[str]) -> int:
    os.environ["MAX_JOBS"] = "1"
    from deepspeed.accelerator import get_accelerator

    from training.ranks.deepspeed_operators import reuse_operators

    reuse_operators()
    failed = False
    for name in builders:
        if psutil.virtual_memory().available < _FREE_BYTES:
            print(f"{name}: not compiled, since too little memory is free", flush=True)
            failed = True
            continue
        try:
            get_accelerator().create_op_builder(name).load(verbose=False)
            print(f"{name}: compiled", flush=True)
        except Exception:  # no compiler, headers or disk space: the run that needs the operator reports it
            traceback.print_exc()
            failed = True
    return int(failed)


def _lower_priority() -> None:
    """Sets the lowest CPU and disk priority, also for the compilers."""
    os.nice(19)
    if hasattr(psutil.Process, "ionice") and sys.platform == "linux":
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def _end_with_compilers(*_: object) -> None:
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
