"""What a worker does besides starting runs: by the modules of the parts that are here."""

from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from training.parts import is_here, present


def _here(*modules: str) -> tuple[ModuleType, ...]:
    return tuple(import_module(module) for module in modules if is_here(module))


IN_EACH_ROUND: list[Callable[[], object]] = present(
    "worker.sweeps.advance:advance_all", "worker.sweeps.lifecycle:finish_all"
)
BEFORE_RUNS = _here("worker.evaluations.starting", "worker.builds")
"""Each has `recover()` and `start_waiting()`. They come before the runs, since they take minutes."""
SERVED = _here("worker.serving.processes")
"""As above; `stop()` and `wait_for_ends()` end it with the worker."""
