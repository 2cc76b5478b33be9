"""What the caller prefers, and is notified of."""

from app.access import callers
from worker.store import accounts, channels, database, outbox
from worker.store.tables import Notification, NotificationChannel, Preferences


def listing() -> list[NotificationChannel]:
    """The caller's channels; for admins also those of others for the runs of all users."""
    caller = callers.current()
    with database.read() as session:
        found = channels.of_owner(session=session, owner=caller.name)
        known = {channel.id for channel in found}
        if caller.administers:
            found += [one for one in channels.for_everyone(session=session) if one.id not in known]
    return found


def history() -> list[tuple[Notification, NotificationChannel]]:
    """The latest messages to the caller's channels, the newest first."""
    with database.read() as session:
        return outbox.recent(session=session, owner=callers.current().name)


def current_preferences() -> Preferences:
    """The caller's preferences."""
    with database.read() as session:
        return accounts.preferences_of(session=session, owner=callers.current().name)


def add_tour_step(step: str) -> None:
    """Stores that the caller has done a step of the tour."""
    with database.write() as session:
        accounts.add_tour_step(session=session, owner=callers.current().name, step=step)
