"""What the database knows of where a run comes from, for the training program to tell in the result's card."""

from sqlmodel import Session

from training.lineage import DataSource, Lineage
from worker.models import Dataset, Run

_ROLES = {"data": "Training data", "validation_data": "Held-out data"}


def lineage(*, session: Session, run: Run) -> Lineage:
    """The run's own line: its parent, its attempts, and the data under their uploader's names."""
    sources = []
    for field, sha256 in run.fingerprints.items():
        known = session.get(Dataset, str(run.config.get(field)))
        sources.append(DataSource(_ROLES.get(field, field), known.name if known else "", sha256))
    return Lineage(run.id, run.name, run.parent_id or "", run.attempt, sources)
