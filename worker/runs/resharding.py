"""Resumes a run with another strategy or number of processes: the changed settings, and whether its checkpoint allows them."""

from sqlmodel import Session

from training.config.choices import Strategy
from training.config.machine import Machine
from training.config.run_config import Changes, RunConfig, stepped_down
from training.errors import UserError
from training.rules import check
from training.run_folder import checkpoints
from training.run_folder.checkpoint_layout import Layout, check_resume
from worker.runs.admission import admitted
from worker.settings import get_settings
from worker.store import runs


def sharding_changes(
    *, session: Session, run_id: str, strategy: Strategy | None, num_processes: int | None, machine: Machine
) -> Changes:
    """The settings with which a run resumes on other processes. The accumulation changes so that the global batch size stays.

    Raises:
        RunNotFound: there is no such run.
        UserError: settings conflict, the global batch size would change, or the checkpoint cannot be converted.
    """
    if strategy is None and num_processes is None:
        return {}
    run = runs.get(session=session, run_id=run_id)
    before = admitted(run)
    changes: Changes = {}
    if strategy is not None:
        changes["strategy"] = strategy.value
    if num_processes is not None:
        changes["num_processes"] = num_processes
    after = stepped_down(before, changes)
    rows = after.micro_batch_size * after.num_processes // after.sequence_parallel_size
    if rows and before.global_batch_size % rows == 0:
        changes["gradient_accumulation_steps"] = before.global_batch_size // rows
        after = stepped_down(before, changes)
    _refuse_conflicts(after, machine)
    checkpoint = next(iter(checkpoints.sealed(get_settings().runs_dir / run.id)), None)
    if checkpoint and (layout := Layout.read(checkpoint)):
        check_resume(layout, after)
    return {name: value for name, value in changes.items() if getattr(before, name) != value}


def _refuse_conflicts(config: RunConfig, machine: Machine) -> None:
    for conflict in check(config, machine):
        if conflict.blocking:
            name = conflict.settings[0]
            raise UserError(name, config.model_dump(mode="json")[name], conflict.reason, conflict.fix)
