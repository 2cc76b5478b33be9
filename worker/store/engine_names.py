"""Which engine a run belongs to."""

from training.config.choices import EngineName
from worker.settings import get_settings
from worker.store.tables import Run


def engine_name(run: Run) -> EngineName:
    """The engine of a run: that of its job, else the one in its settings, else the installation's first one."""
    if run.job_id:
        return EngineName.SLURM
    chosen = EngineName(run.config.get("engine", EngineName.AUTO))
    return get_settings().engine_names[0] if chosen is EngineName.AUTO else chosen
