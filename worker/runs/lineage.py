"""The origin of a run, for its model card: its parent, its attempts and its data sets."""

from sqlmodel import Session

from training.config.data_sets import sources
from training.run_folder.lineage import DataSource, Lineage
from worker.store.tables import Dataset, Run

ROLES = {"data": "Training data", "validation_data": "Held-out data"}


def lineage_of(*, session: Session, run: Run) -> Lineage:
    """The run's origin: its parent, its attempts, and its data sets with their names."""
    origins = []
    for field, role in ROLES.items():
        for number, source in enumerate(sources(run.config.get(field)), start=1):
            sha256 = run.fingerprints.get(f"{field} {number}" if number > 1 else field)
            known = session.get(Dataset, source.path)
            if sha256:
                origins.append(DataSource(role, known.name if known else source.name, sha256))
    return Lineage(run.id, run.name, run.parent_id or "", run.attempt, origins)
