"""The broker's kind, version and waiting messages, or why it is unreachable."""

from dataclasses import dataclass

from kombu.exceptions import OperationalError
from redis import Redis, RedisError

from worker import celery_app
from worker.settings import get_settings

_MISSING = "Start it with `lathe up`, or set LATHE_BROKER_URL to a running Redis or Valkey server."
_CONFIGURED = (
    "Start that server, or correct LATHE_BROKER_URL. Runs stay queued; workers look for them every few seconds."
)


@dataclass(frozen=True)
class Broker:
    """What the page System shows of the broker. `address` is without the password; `problem` and `fix` if it is unreachable."""

    kind: str
    version: str
    address: str
    embedded: bool
    reachable: bool
    waiting: int | None
    """Messages that no worker has received yet."""
    problem: str = ""
    fix: str = ""


def state() -> Broker:
    """The broker's state; takes about a second if it is unreachable."""
    settings = get_settings()
    embedded = not settings.broker_url
    with celery_app.quick_app().connection_for_write() as connection:
        address = connection.as_uri()
        try:
            client: Redis = connection.default_channel.client
            info = client.info("server")
            waiting = int(client.llen(celery_app.NAME))
        except (OperationalError, RedisError, OSError) as error:
            fix = _MISSING if embedded else _CONFIGURED
            return Broker("Valkey" if embedded else "Redis", "", address, embedded, False, None, str(error), fix)
    valkey = "valkey_version" in info
    version = str(info["valkey_version" if valkey else "redis_version"])
    return Broker("Valkey" if valkey else "Redis", version, address, embedded, True, waiting)
