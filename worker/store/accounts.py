"""Accounts: users with their own token, and what users prefer. Only a token's hash is stored; the token is shown once.

Every function takes a session, which the caller commits, as in worker/store/runs.py.
"""

import hashlib
import re
import secrets
from typing import Any

from sqlmodel import Session, col, select

from training.errors import UserError
from worker.settings import get_settings
from worker.store import channels, database, shares
from worker.store.tables import LOCAL, Account, Preferences

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
Limits = dict[str, int | None]
"""Limits of an account to change, by their columns (max_devices, ...); None removes one."""

MOST = {"max_devices": 2**31 - 1, "max_waiting": 2**31 - 1, "max_disk_bytes": 2**63 - 1}
"""The highest limits that can be stored, by their columns."""

LONGEST_MODEL = 500
NAME_RULE = "1 to 64 letters, digits and . _ @ -, beginning with a letter or digit"


class AccountError(UserError):
    """The account cannot be created."""

    def __init__(self, name: str, message: str, fix: str) -> None:
        super().__init__("NAME", name, message, fix)


class BadPreference(UserError):  # noqa: N818
    """The preference cannot be stored."""


class AccountNotFound(AccountError):  # noqa: N818
    """There is no such account."""

    status = 404


def add(*, session: Session, name: str, admin: bool = False, limits: Limits | None = None) -> str:
    """Creates an account and returns its token.

    Raises:
        AccountError: the name cannot be used, or is in use.
        UserError: a limit is below 1.
    """
    if not NAME.fullmatch(name) or name == LOCAL:
        reason = "is the user who runs the server." if name == LOCAL else f"is not {NAME_RULE}."
        raise AccountError(name, reason, "Give another name.")
    if session.get(Account, name) is not None:
        raise AccountError(name, "is in use.", f"`lathe user rotate {name}` gives it a new token.")
    token = new_token()
    session.add(Account(name=name, token_hash=_hash(token), admin=admin, created_at=database.now(session=session)))
    limit(session=session, name=name, limits=limits or {})
    return token


def view_of(*, session: Session, name: str) -> str | None:
    """The user to whose view reading is limited for `name`, who need not have an account; None for those who see everything."""
    account = session.get(Account, name)
    sees_all = name == LOCAL or get_settings().visibility == "all" or (account is not None and account.admin)
    return None if sees_all else name


def limit(*, session: Session, name: str, limits: Limits) -> Account:
    """Changes what an account may use at once; what it uses already stays.

    Raises:
        AccountNotFound: there is no such account.
        UserError: a limit is below 1.
    """
    account = get(session=session, name=name)
    for field, value in limits.items():
        if value is not None and not 1 <= value <= MOST[field]:
            raise UserError(field, value, "is not a limit.", f"Give 1 to {MOST[field]}, or none.")
        setattr(account, field, value)
    session.add(account)
    return account


def rotate(*, session: Session, name: str) -> str:
    """Gives an account a new token and returns it; the old one stops working.

    Raises:
        AccountNotFound: there is no such account.
    """
    account, token = get(session=session, name=name), new_token()
    account.token_hash = _hash(token)
    session.add(account)
    return token


def remove(*, session: Session, name: str) -> None:
    """Removes an account with its notification channels; its runs and data sets stay, and only admins may change them.

    Raises:
        AccountNotFound: there is no such account.
    """
    session.delete(get(session=session, name=name))
    channels.remove_of(session=session, owner=name)
    shares.remove_user(session=session, user=name)
    if preferences := session.get(Preferences, name):
        session.delete(preferences)


def get(*, session: Session, name: str) -> Account:
    """The account of that name. Raises AccountNotFound if there is none."""
    missing = AccountNotFound(name, "does not exist.", "`lathe user list` lists all accounts.")
    return database.existing(session, Account, name, missing)


def find(*, session: Session, name: str) -> Account | None:
    """The account of that name, or None."""
    return session.get(Account, name)


def of_token(*, session: Session, token: str) -> Account | None:
    """The account with this token, or None. The lookup is by hash, so its duration reveals nothing about the token."""
    return session.exec(select(Account).where(Account.token_hash == _hash(token))).first()


def listing(*, session: Session) -> list[Account]:
    """The accounts by name."""
    return list(session.exec(select(Account).order_by(col(Account.name))))


def preferences_of(*, session: Session, owner: str) -> Preferences:
    """The preferences of a user; the defaults if they changed nothing."""
    return session.get(Preferences, owner) or Preferences(owner=owner)


def change_preferences(*, session: Session, owner: str, **values: Any) -> Preferences:
    """Stores some of `model`, `plots`, `price_gpu_hour` and `price_kwh`, prices as typed; worker/forecasts/prices.py reads them.

    Raises:
        BadPreference: the model is too long.
    """
    kept = preferences_of(session=session, owner=owner)
    for name, value in values.items():
        setattr(kept, name, value.strip() if isinstance(value, str) else value)
    if len(kept.model) > LONGEST_MODEL:
        message = f"has {len(kept.model):,} characters."
        raise BadPreference("model", f"{kept.model[:40]}...", message, f"Use at most {LONGEST_MODEL}.")
    session.add(kept)
    return kept


def add_tour_step(*, session: Session, owner: str, step: str) -> None:
    """Stores that the user has done a step of the tour."""
    found = preferences_of(session=session, owner=owner)
    if step not in found.tour and not found.damaged:
        found.tour = [*found.tour, step]
        session.add(found)


def tour_steps(*, session: Session) -> set[str]:
    """The steps of the tour that any user has done."""
    return {step for one in session.exec(select(Preferences)) for step in one.tour}


def new_token() -> str:
    """256 random bits in characters that need no escaping in URLs and headers."""
    return secrets.token_urlsafe(32)


def _hash(token: str) -> str:
    """SHA-256; a slow hash adds nothing, since 256 random bits cannot be guessed."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
