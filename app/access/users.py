"""The caller: their account and token, what they prefer and are notified of; and for admins the accounts of all users."""

from collections.abc import Sequence

from app.access import callers, server_token
from app.access.permissions import check_admin
from app.documents.preferences import AccountOfCaller
from app.texts import gettext_noop
from training.errors import Conflict
from worker.settings import get_settings
from worker.store import accounts, channels, database, outbox
from worker.store.tables import Account, Notification, NotificationChannel, Preferences


def listing() -> Sequence[Account]:
    """The accounts by name."""
    check_admin("users", None)
    with database.read() as session:
        return accounts.listing(session=session)


class NoOwnToken(Conflict):
    """The caller's token cannot be replaced here."""


def own() -> AccountOfCaller:
    """The caller."""
    caller = callers.current()
    return AccountOfCaller(name=caller.name, role=_role(), signed_in=not caller.here, token=_token())


def _role() -> str:
    caller = callers.current()
    if caller.is_local:
        return "runs the server"
    return "admin" if caller.admin else "user"


def _token() -> str | None:
    caller, settings = callers.current(), get_settings()
    if caller.is_local:
        if settings.token is not None:
            return gettext_noop("LATHE_TOKEN in the server's environment")
        return gettext_noop("in the file “token” of the data folder, which only the server's user can read")
    with database.read() as session:
        account = accounts.find(session=session, name=caller.name)
    return gettext_noop("stored as a hash, so it cannot be shown again") if account else None


def rotate_own() -> str:
    """Gives the caller a new token and returns it; the old one stops working at once.

    Raises:
        NoOwnToken: it is set in the environment, or a proxy signs the caller in.
    """
    caller, settings = callers.current(), get_settings()
    if caller.is_local:
        if settings.token is not None:
            message = "is set in the server's environment."
            raise NoOwnToken("LATHE_TOKEN", None, message, "Change it there and start the server again.")
        return server_token.rotate(settings)
    with database.write() as session:
        if accounts.find(session=session, name=caller.name) is None:
            message = "has no token: the proxy in front of the server signs you in."
            raise NoOwnToken("account", caller.name, message, "Ask an admin for an account, if you need a token.")
        return accounts.rotate(session=session, name=caller.name)


def own_channels() -> list[NotificationChannel]:
    """The caller's channels; for admins also those of others for the runs of all users."""
    caller = callers.current()
    with database.read() as session:
        found = channels.of_owner(session=session, owner=caller.name)
        known = {channel.id for channel in found}
        if caller.administers:
            found += [one for one in channels.for_everyone(session=session) if one.id not in known]
    return found


def own_messages() -> list[tuple[Notification, NotificationChannel]]:
    """The latest messages to the caller's channels, the newest first."""
    with database.read() as session:
        return outbox.recent(session=session, owner=callers.current().name)


def own_preferences() -> Preferences:
    """The caller's preferences."""
    with database.read() as session:
        return accounts.preferences_of(session=session, owner=callers.current().name)


def add_tour_step(step: str) -> None:
    """Stores that the caller has done a step of the tour."""
    with database.write() as session:
        accounts.add_tour_step(session=session, owner=callers.current().name, step=step)
