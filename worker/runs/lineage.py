"""The origin of a run, for its model card: its parent, its attempts and its data sets."""

from sqlmodel import Session

from training.run_folder.lineage import DataSource, Lineage
from worker.store.tables import Dataset, Run

_ROLES = {"data": "Training data", "validation_data": "Held-out data"}


def lineage_of(*, session: Session, run: Run) -> Lineage:
    """The run's origin: its parent, its attempts, and its data sets with their names."""
    sources = []
    for field, sha256 in run.fingerprints.items():
        known = session.get(Dataset, str(run.config.get(field)))
        sources.append(DataSource(_ROLES.get(field, field), known.name if known else "", sha256))
    return Lineage(run.id, run.name, run.parent_id or "", run.attempt, sources)
