"""With whom the caller shares runs, sweeps and data sets, which matters if LATHE_VISIBILITY is `own`."""

from collections.abc import Collection

from sqlmodel import Session

from app.access.ownership import own_dataset, own_run, own_sweep
from training.errors import UserError
from worker.settings import get_settings
from worker.store import accounts, database, shares
from worker.store.shares import Kind
from worker.store.sight import EVERYBODY

MOST = 100
"""Users with whom one thing may be shared."""

_OWN = {"run": own_run, "sweep": own_sweep, "dataset": own_dataset}


def users(kind: Kind, object_id: str) -> list[str]:
    """The users with whom it is shared, by name; `*` stands for all.

    Raises:
        Forbidden: another user owns it.
    """
    own = _OWN[kind](object_id)
    with database.read() as session:
        return shares.users(session=session, kind=kind, object_id=own)


def share(kind: Kind, object_id: str, names: Collection[str]) -> list[str]:
    """Shares it with these users and with no others, and returns their names; `*` stands for all.

    Raises:
        Forbidden: another user owns it.
        UserError: a name is not an account's, or there are too many.
    """
    own = _OWN[kind](object_id)
    with database.write() as session:
        return store(session, kind, own, names)


def store(session: Session, kind: Kind, object_id: str, names: Collection[str]) -> list[str]:
    """As `share`, for what the caller may change."""
    wanted = sorted({name.strip() for name in names if name.strip()})
    if len(wanted) > MOST:
        message = f"cannot be shared with {len(wanted)} users; at most with {MOST}."
        raise UserError(kind, object_id, message, f"Use {EVERYBODY} for all users.")
    for name in wanted:
        if not _may_be_named(session, name):
            fix = f"Name accounts, or {EVERYBODY} for all users. An admin lists them with `lathe user list`."
            raise UserError(kind, object_id, f"cannot be shared with {name!r}: there is no such account.", fix)
    shares.replace(session=session, kind=kind, object_id=object_id, users=wanted)
    return wanted


def _may_be_named(session: Session, name: str) -> bool:
    """True for accounts and all users, and where a proxy names the users, for each possible name."""
    if name == EVERYBODY or accounts.find(session=session, name=name) is not None:
        return True
    return bool(get_settings().proxy_user_header) and accounts.NAME.fullmatch(name) is not None
