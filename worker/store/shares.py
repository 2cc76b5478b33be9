"""With whom runs, sweeps and data sets are shared, and who besides its owner has uploaded the file of a data set."""

from collections.abc import Collection, Sequence
from typing import Final, Literal, cast

from sqlmodel import Session, col, delete, select

from worker.store import database
from worker.store.tables import Share

Kind = Literal["run", "sweep", "dataset", "upload"]
LINK: Final = "link:"
"""Begins, in place of a user, a link that shares with whoever opens it; the hash of its key follows."""

UPLOAD: Final = "upload"
"""The kind of the rows that tell who else uploaded a data set's file. Its owner cannot take it from them."""


def users(*, session: Session, kind: Kind, object_id: str) -> list[str]:
    """The users with whom it is shared, by name."""
    mine = Share.kind == kind, Share.object_id == object_id
    return list(session.exec(select(Share.user).where(*mine).order_by(col(Share.user))))


def of(*, session: Session, kind: Kind, user: str) -> set[str]:
    """The ids of what is shared with a user by name."""
    return set(session.exec(select(Share.object_id).where(Share.kind == kind, Share.user == user)))


def of_link(*, session: Session, link: str) -> tuple[Kind, str] | None:
    """What a link shares: its kind and id; None if there is no such link."""
    shared = session.exec(select(Share).where(Share.user == link)).first()
    return (cast(Kind, shared.kind), shared.object_id) if shared else None


def add(*, session: Session, kind: Kind, object_id: str, user: str) -> None:
    """Shares it with a user."""
    values = {"kind": kind, "object_id": object_id, "user": user}
    session.exec(database.insert(session, Share).values(**values).on_conflict_do_nothing())


def drop(*, session: Session, kind: Kind, object_id: str, user: str) -> None:
    """Shares it with this user no longer."""
    mine = col(Share.kind) == kind, col(Share.object_id) == object_id, col(Share.user) == user
    session.exec(delete(Share).where(*mine))


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
