"""The engines of this installation."""

from training.config.choices import EngineName
from worker.engines.engine import Engine
from worker.engines.local.starting import LocalEngine
from worker.engines.slurm.engine import SlurmEngine
from worker.settings import get_settings
from worker.store.tables import Run

_ALL: dict[EngineName, Engine] = {engine.name: engine for engine in (LocalEngine(), SlurmEngine())}


def engines() -> list[Engine]:
    """The engines in LATHE_ENGINES, the default one first."""
    return [_ALL[name] for name in get_settings().engine_names]


def engine(name: EngineName) -> Engine:
    """The engine of this name, also one that new runs can no longer choose."""
    return _ALL[name]


def engine_of(run: Run) -> Engine:
    """The engine that places the run."""
    return engine(run.engine)
