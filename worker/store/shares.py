"""With whom runs, sweeps and data sets are shared."""

from collections.abc import Collection, Sequence
from typing import Literal

from sqlmodel import Session, col, delete, select

from worker.store import database
from worker.store.tables import Share

Kind = Literal["run", "sweep", "dataset"]


def users(*, session: Session, kind: Kind, object_id: str) -> list[str]:
    """The users with whom it is shared, by name."""
    mine = Share.kind == kind, Share.object_id == object_id
    return list(session.exec(select(Share.user).where(*mine).order_by(col(Share.user))))


def add(*, session: Session, kind: Kind, object_id: str, user: str) -> None:
    """Shares it with a user."""
    values = {"kind": kind, "object_id": object_id, "user": user}
    session.exec(database.insert(session, Share).values(**values).on_conflict_do_nothing())


def replace(*, session: Session, kind: Kind, object_id: str, users: Collection[str]) -> None:
    """Shares it with these users, and with no others."""
    remove(session=session, kind=kind, object_ids=[object_id])
    for user in users:
        add(session=session, kind=kind, object_id=object_id, user=user)


def remove_user(*, session: Session, user: str) -> None:
    """Shares nothing with the user."""
    session.exec(delete(Share).where(col(Share.user) == user))


def remove(*, session: Session, kind: Kind, object_ids: Sequence[str]) -> None:
    """Shares them with nobody."""
    session.exec(delete(Share).where(col(Share.kind) == kind, col(Share.object_id).in_(object_ids)))
