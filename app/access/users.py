"""Accounts of other users, which admins manage by REST."""

from typing import Any

from app.access.permissions import check_admin
from app.documents import accounts as document
from worker.store import accounts, database


def listing(*, usage: bool = True) -> list[dict[str, Any]]:
    """The accounts by name with their limits and, with `usage`, what they use, without their tokens.

    Raises:
        Forbidden: the caller is no admin.
    """
    check_admin("users", None)
    with database.read() as session:
        found = accounts.listing(session=session)
    return document.listing(found) if usage else [account.model_dump(exclude={"token_hash"}) for account in found]


def add(name: str, *, admin: bool, limits: accounts.Limits | None = None) -> str:
    """Creates an account and returns its token, which is not stored.

    Raises:
        Forbidden: the caller is no admin.
        AccountError: the name cannot be used, or is in use.
        UserError: a limit is below 1.
    """
    check_admin("users", name)
    with database.write() as session:
        return accounts.add(session=session, name=name, admin=admin, limits=limits)


def limit(name: str, limits: accounts.Limits) -> dict[str, Any]:
    """Changes what an account may use at once; returns the account as `listing` does.

    Raises:
        Forbidden: the caller is no admin.
        AccountNotFound: there is no such account.
        UserError: a limit is below 1.
    """
    check_admin("users", name)
    with database.write() as session:
        account = accounts.limit(session=session, name=name, limits=limits)
    return document.listing([account])[0]


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
