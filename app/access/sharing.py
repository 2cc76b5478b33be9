"""With whom the caller shares runs, sweeps and data sets, which matters if LATHE_VISIBILITY is `own`."""

from collections.abc import Collection

from app.access import changes
from training.errors import UserError
from worker.settings import get_settings
from worker.store import accounts, database, shares
from worker.store.shares import Kind
from worker.store.sight import EVERYBODY

LONGEST = 100
"""Users with whom one thing may be shared."""

_OWN = {"run": changes.own_run, "sweep": changes.own_sweep, "dataset": changes.own_dataset}


def users(kind: Kind, object_id: str) -> list[str]:
    """The users with whom it is shared, by name; `*` stands for all.

    Raises:
        Forbidden: another user owns it.
    """
    own = _OWN[kind](object_id)
    with database.read() as session:
        return shares.users(session=session, kind=kind, object_id=own)


def share(kind: Kind, object_id: str, names: Collection[str]) -> list[str]:
    """Shares it with these users, and with no others; `*` stands for all.

    Raises:
        Forbidden: another user owns it.
        UserError: a name is not an account's, or there are too many.
    """
    own, wanted = _OWN[kind](object_id), sorted({name.strip() for name in names if name.strip()})
    if len(wanted) > LONGEST:
        message = f"cannot be shared with {len(wanted)} users; at most with {LONGEST}."
        raise UserError(kind, own, message, f"Use {EVERYBODY} for all users.")
    with database.write() as session:
        for name in wanted:
            if name != EVERYBODY and not _exists(accounts.find(session=session, name=name) is not None, name):
                fix = f"Name accounts, or {EVERYBODY} for all users. An admin lists them with `lathe user list`."
                raise UserError(kind, own, f"cannot be shared with {name!r}: there is no such account.", fix)
        shares.replace(session=session, kind=kind, object_id=own, users=wanted)
    return wanted


def _exists(account: bool, name: str) -> bool:
    """True for an account, and where a proxy names the users, for each possible name."""
    return account or (bool(get_settings().proxy_user_header) and accounts.NAME.fullmatch(name) is not None)
