"""The engines of this installation. An engine places waiting runs on machines and says what became of them.

With every engine, the database holds the state of a run. The process that starts a run claims it there (worker/store/claims.py);
an engine starts that process on a machine, and ends what is left of it. Attempts, leases, checkpoints, resume and diagnosis do not
depend on it.
"""

from functools import cache
from typing import Protocol

from sqlmodel import Session

from training.config.choices import EngineName
from training.parts import named
from worker.engine_traits import ENGINES
from worker.settings import get_settings
from worker.store.tables import Run
from worker.store.tables.reports import Capacity
from worker.supervision.holders import Holder


class Engine(Protocol):
    """Places runs on machines. No method raises because the engine is unreachable; the next round tries again."""

    name: EngineName

    asks_elsewhere: bool
    """True if its methods ask another system, which may not answer for a while: a worker's other work does not wait for them."""

    def submit_waiting(self) -> list[Run]:
        """Starts waiting runs, or hands them to the engine's own queue; returns those that were started or handed over.

        Submitting twice starts nothing twice.
        """
        ...

    def poll(self, run: Run) -> Holder:
        """What is known of the process that holds the running run."""
        ...

    def cancel(self, run: Run) -> None:
        """Ends what is left of an attempt that no longer holds its run; returns when nothing of it trains, as far as is known."""
        ...

    def prepare(self) -> None:
        """Keeps ready what lets its runs start at once."""
        ...

    def reason_to_wait(self, *, session: Session, run: Run) -> str:
        """Why a queued run does not start, as a sentence, as far as the engine knows; empty if it knows nothing."""
        ...

    def capacity(self) -> Capacity | None:
        """The machines that it has; None if their workers report them."""
        ...


def engines() -> list[Engine]:
    """The engines in LATHE_ENGINES, the default one first."""
    return [engine(name) for name in get_settings().engine_names]


@cache
def engine(name: EngineName) -> Engine:
    """The engine of this name, also one that new runs can no longer choose."""
    made: Engine = named(f"worker.engines.{ENGINES[name].engine}")()
    return made


def engine_of(run: Run) -> Engine:
    """The engine that places the run."""
    return engine(run.engine)
