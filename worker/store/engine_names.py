"""Which engine a run belongs to."""

from training.config.choices import EngineName
from worker.settings import get_settings
from worker.store.tables import Run


def engine_name(run: Run) -> EngineName:
    """The engine of a run: that of its job, else the one in its settings, else the installation's first one."""
    if run.job_id:
        return EngineName.SLURM
    return chosen_engine(EngineName(run.config.get("engine", EngineName.AUTO)))


def chosen_engine(engine: EngineName) -> EngineName:
    """The engine that a run's setting means."""
    return get_settings().engine_names[0] if engine is EngineName.AUTO else engine
