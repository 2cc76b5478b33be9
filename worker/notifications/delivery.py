"""Sends what is in the outbox, in a thread of the worker. Several workers may do so at once: a message is claimed by one."""

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sqlmodel import Session

from training.redaction import redact
from worker.notifications import addresses, http_post, mail, messages
from worker.notifications.addresses import AddressError, NotSent
from worker.settings import get_settings
from worker.store import accounts, channels, database, outbox
from worker.store.database import UNREACHABLE
from worker.store.tables import LOCAL, Attempt, ChannelKind, Event, Notification, NotificationChannel

log = logging.getLogger(__name__)

ROUND_SECONDS = 2.0
_AT_ONCE = 8
_FORGET_ROUNDS = 1800


@dataclass(frozen=True)
class Task:
    """A claimed message with all that is needed to send it. `trusted`: its owner may use any address."""

    message: Notification
    channel: NotificationChannel
    report: dict[str, object] | None
    trusted: bool


class Deliverer(threading.Thread):
    """Sends messages that are due, every few seconds, until `stop`."""

    def __init__(self) -> None:
        super().__init__(name="notifications", daemon=True)
        self._stopping = threading.Event()

    def run(self) -> None:
        rounds = 0
        while not self._stopping.wait(ROUND_SECONDS):
            try:
                while deliver_due() and not self._stopping.is_set():
                    pass
                if rounds % _FORGET_ROUNDS == 0:
                    with database.write() as session:
                        outbox.forget_old(session=session)
            except UNREACHABLE as error:
                log.warning("the database is unreachable: %s", error)
            except Exception:
                log.exception("notifications could not be sent")
            rounds += 1

    def stop(self) -> None:
        """Ends the thread after the messages that it is sending."""
        self._stopping.set()


def deliver_due() -> int:
    """Claims and sends messages that are due, a few at once; returns how many it claimed."""
    with database.read() as session:
        due = outbox.due(session=session, limit=_AT_ONCE)
    if not due:
        return 0
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="notify") as pool:
        return sum(pool.map(_claim_and_send, due))


def _claim_and_send(message_id: int) -> bool:
    with database.write() as session:
        message = outbox.claim(session=session, message_id=message_id)
        task = _task(session, message) if message else None
    if task is None:
        return False
    send(task)
    return True


def send_test(channel_id: str) -> Notification:
    """Sends a test message now, once, and returns it with the outcome.

    Raises:
        ChannelNotFound: there is no such channel.
    """
    with database.write() as session:
        channel = channels.get(session=session, channel_id=channel_id)
        task = _task(session, outbox.add_test(session=session, channel=channel))
    send(task, retry=False)
    with database.read() as session:
        return outbox.get(session=session, message_id=task.message.id or 0)


def send(task: Task, *, retry: bool = True) -> None:
    """Sends a claimed message and stores the outcome; with `retry`, a failed one is tried again later."""
    message = task.message
    try:
        _send(task)
    except NotSent as error:
        reason, final, wait = redact(str(error)), error.final or not retry, error.wait
    except AddressError as error:
        reason, final, wait = redact(f"The address {error.message} {error.fix}"), True, None
    except Exception as error:  # a message that cannot be written or sent must not block the others
        log.error("notification %s failed: %s", message.id, type(error).__name__)
        reason, final, wait = f"Lathe could not write the message: {type(error).__name__}.", not retry, None
    else:
        with database.write() as session:
            outbox.delivered(session=session, message=message)
        return
    # Never the address: a webhook's URL is a secret.
    log.warning("notification %s to %s %s was not sent: %s", message.id, task.channel.kind, task.channel.id, reason)
    with database.write() as session:
        outbox.failed(session=session, message=message, reason=reason, final=final, wait=wait)


def _send(task: Task) -> None:
    """Sends the message. Raises NotSent if it was not accepted, and AddressError if its address may not be used."""
    message, channel, settings = task.message, task.channel, get_settings()
    if message.event is Event.TEST:
        said = messages.of_test(settings)
    else:
        said = messages.of_run(message.event, message.run, task.report, settings)
    if channel.kind is ChannelKind.EMAIL:
        mail.send(channel.address, said.title, said.text, said.html)
    elif channel.kind is ChannelKind.WEBHOOK:
        hook = addresses.webhook(channel.address, trusted=task.trusted)
        http_post.post(hook, *messages.body(said, channel.format, f"lathe-{message.id}"))


def _task(session: Session, message: Notification) -> Task:
    channel = channels.get(session=session, channel_id=message.channel_id)
    attempt = session.get(Attempt, (message.run_id, message.attempt)) if message.run_id else None
    account = accounts.find(session=session, name=channel.owner)
    trusted = channel.owner == LOCAL or bool(account and account.admin)
    return Task(message, channel, attempt.out_of_memory if attempt else None, trusted)
