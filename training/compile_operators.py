"""`python -m training.compile_operators [SECONDS]` compiles ahead what ZeRO would compile at its first use on this machine.

A worker starts it in the background: it waits for SECONDS, takes the lowest priority and one processor, and ends at once
where everything is compiled. What fails is printed; the run that needs it then says so itself.
"""

import os
import signal
import sys
import time
import traceback

import psutil

from training import operators

# DeepSpeed's builder and the operator's name. Lathe's own optimizers need none but the first; a DeepSpeed JSON may.
_ON_CPU = {"ShareMemCommBuilder": "deepspeed_shm_comm", "CPUAdamBuilder": "cpu_adam", "FusedAdamBuilder": "fused_adam"}
_ON_GPU = {"CPUAdamBuilder": "cpu_adam"}  # others are for one kind of card, which to ask would take its memory

_FREE_BYTES = 4 * 2**30  # a compiler takes up to 1.5 GB, which a run may need


def main(arguments: list[str]) -> int:
    """Compiles what is missing. Returns 1 where something could not be compiled."""
    signal.signal(signal.SIGTERM, _end_with_compilers)
    _give_way()
    time.sleep(float(arguments[0]) if arguments else 0)
    operators.use_own_folder()
    wanted = _ON_CPU if os.environ.get("DS_ACCELERATOR") == "cpu" else _ON_GPU
    missing = [builder for builder, name in wanted.items() if not operators.usable(operators.folder_of(name), name)]
    if not missing:
        return 0
    with operators.ahead_file().open("a") as lock:
        if not operators.take(lock):  # another worker's does it
            return 0
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        return _compile(missing)


def _compile(builders: list[str]) -> int:
    os.environ["MAX_JOBS"] = "1"
    from deepspeed.accelerator import get_accelerator

    from training.compiling import reuse_operators

    reuse_operators()
    failed = False
    for name in builders:
        if psutil.virtual_memory().available < _FREE_BYTES:
            print(f"{name}: not compiled, since the machine has little memory free", flush=True)
            failed = True
            continue
        try:
            get_accelerator().create_op_builder(name).load(verbose=False)
            print(f"{name}: compiled", flush=True)
        except Exception:  # no compiler, no headers, no room: each of them is told by the run that needs the operator
            traceback.print_exc()
            failed = True
    return int(failed)


def _give_way() -> None:
    """The lowest priority for processor and disk, for the compilers too."""
    os.nice(19)
    if hasattr(psutil.Process, "ionice") and sys.platform == "linux":
        psutil.Process().ionice(psutil.IOPRIO_CLASS_IDLE)


def _end_with_compilers(*_: object) -> None:
    for child in psutil.Process().children(recursive=True):
        child.kill()
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
