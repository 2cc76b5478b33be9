"""Accounts of other users, which admins manage by REST."""

from typing import Any

from app.access.permissions import check_admin
from worker.store import accounts, database


def listing() -> list[dict[str, Any]]:
    """The accounts by name, without their tokens.

    Raises:
        Forbidden: the caller is no admin.
    """
    check_admin("users", None)
    with database.read() as session:
        return [account.model_dump(exclude={"token_hash"}) for account in accounts.listing(session=session)]


def add(name: str, *, admin: bool) -> str:
    """Creates an account and returns its token, which is not stored.

    Raises:
        Forbidden: the caller is no admin.
        AccountError: the name cannot be used, or is in use.
    """
    check_admin("users", name)
    with database.write() as session:
        return accounts.add(session=session, name=name, admin=admin)


def rotate(name: str) -> str:
    """Gives an account a new token and returns it.

    Raises:
        Forbidden: the caller is no admin.
        AccountNotFound: there is no such account.
    """
    check_admin("users", name)
    with database.write() as session:
        return accounts.rotate(session=session, name=name)


def remove(name: str) -> None:
    """Removes an account; its runs and data sets stay.

    Raises:
        Forbidden: the caller is no admin.
        AccountNotFound: there is no such account.
    """
    check_admin("users", name)
    with database.write() as session:
        accounts.remove(session=session, name=name)
