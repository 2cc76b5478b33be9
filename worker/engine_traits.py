"""What an engine is to the rest of Lathe: one row each. What it does is a package in worker/engines/."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from training.config.choices import EngineName
from training.config.machine import A_CLUSTER, A_CPU_CLUSTER, Machine
from training.config.run_config import RunConfig
from training.errors import Problem
from training.tables import only
from worker.settings import Settings


def _no_machine(_settings: Settings) -> Machine | None:
    return None


def _no_problems(_settings: Settings, _config: RunConfig) -> Iterator[Problem]:
    return iter(())


@dataclass(frozen=True, kw_only=True)
class EngineTraits:
    """What settings, checks, quotas, documents and pages need to know of an engine. What is not stated does not hold."""

    label: str
    """Its name in sentences."""
    engine: str
    """Its `Engine`, as `module:class` in worker/engines/."""
    has_jobs: bool = False
    """It has a queue and machines of its own, where each run is a job; else runs start on the machines of the workers."""
    machine: Callable[[Settings], Machine | None] = _no_machine
    """The machine that runs are checked against; None if it is that of the workers."""
    problems: Callable[[Settings, RunConfig], Iterator[Problem]] = _no_problems
    """What of a run's settings does not fit it."""


def _slurm_nodes(settings: Settings) -> Machine:
    """Any of its nodes, whose devices are unknown here."""
    return A_CPU_CLUSTER if settings.slurm_gres == "cpu" else A_CLUSTER


def _slurm_problems(settings: Settings, config: RunConfig) -> Iterator[Problem]:
    if problem := settings.time_problem(config.slurm_options):
        yield problem


ENGINES = only(
    {
        EngineName.LOCAL: EngineTraits(label="the workers", engine="local.starting:LocalEngine"),
        EngineName.SLURM: EngineTraits(
            label="Slurm",
            engine="slurm.engine:SlurmEngine",
            has_jobs=True,
            machine=_slurm_nodes,
            problems=_slurm_problems,
        ),
    }
)
"""`auto` is none: it is the installation's first one."""
WITH_JOBS = tuple(name for name, traits in ENGINES.items() if traits.has_jobs)
