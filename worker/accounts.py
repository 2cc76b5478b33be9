"""Accounts: people who have a token of their own. A token is known by its hash alone, and is shown once.

Every function takes a session and leaves committing to its owner, as in worker/runs.py.
"""

import hashlib
import re
import secrets

from sqlmodel import Session, col, select

from training.fields import Problem
from worker import database
from worker.models import LOCAL, Account

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
NAME_RULE = "1 to 64 letters, digits and . _ @ -, beginning with a letter or digit"


class AccountError(ValueError):
    """An account that cannot be made or is not there; `problem` says why and what to do."""

    def __init__(self, name: str, message: str, fix: str) -> None:
        self.problem = Problem("NAME", name, message, fix)
        super().__init__(str(self.problem))


def add(*, session: Session, name: str, admin: bool = False) -> str:
    """Makes an account and returns its token.

    Raises:
        AccountError: the name cannot be used, or is in use.
    """
    if not NAME.fullmatch(name) or name == LOCAL:
        reason = "is the user who runs the server." if name == LOCAL else f"is not {NAME_RULE}."
        raise AccountError(name, reason, "Give another name.")
    if session.get(Account, name) is not None:
        raise AccountError(name, "is in use.", f"`lathe user rotate {name}` gives it a new token.")
    token = new_token()
    session.add(Account(name=name, token_hash=_hash(token), admin=admin, created_at=database.now(session=session)))
    return token


def rotate(*, session: Session, name: str) -> str:
    """Gives an account another token and returns it; the one before is worth nothing from then on.

    Raises:
        AccountError: there is no such account.
    """
    account, token = get(session=session, name=name), new_token()
    account.token_hash = _hash(token)
    session.add(account)
    return token


def remove(*, session: Session, name: str) -> None:
    """Removes an account; what it owns stays, and only admins may change it then.

    Raises:
        AccountError: there is no such account.
    """
    session.delete(get(session=session, name=name))


def get(*, session: Session, name: str) -> Account:
    """The account of that name.

    Raises:
        AccountError: there is none.
    """
    found = session.get(Account, name)
    if found is None:
        raise AccountError(name, "has no account.", "`lathe user list` lists them all.")
    return found


def find(*, session: Session, name: str) -> Account | None:
    """The account of that name, None where there is none."""
    return session.get(Account, name)


def of_token(*, session: Session, token: str) -> Account | None:
    """The account whose token it is. What is looked up is a hash: how long that takes tells nothing about a token."""
    return session.exec(select(Account).where(Account.token_hash == _hash(token))).first()


def listing(*, session: Session) -> list[Account]:
    """The accounts by name."""
    return list(session.exec(select(Account).order_by(col(Account.name))))


def new_token() -> str:
    """256 bits of chance, in letters that a URL and a header take as they are."""
    return secrets.token_urlsafe(32)


def _hash(token: str) -> str:
    """SHA-256: a token of 256 random bits cannot be guessed, so that a slow hash would add nothing."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
