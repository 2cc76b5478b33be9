"""The page System, at /system: machines, devices, accounts, disk space and services; frees disk space and removes machines."""

from collections.abc import Sequence

from starlette.datastructures import QueryParams

from app.access import callers
from app.documents import system
from app.documents.system import MachineAnswer, Services
from app.format import system_text as words
from app.pages.common.cache import TimedCache
from app.pages.common.view import Context, View
from app.web.templating import TEMPLATES
from worker import services
from worker.choices import Freeable
from worker.machine.measurement import version_of
from worker.store.machines import SERVING

_SECONDS, _WORKING_SECONDS = 5.0, 1.0
_services: TimedCache[None, Services] = TimedCache(seconds=15.0)


def installation(_: QueryParams) -> Context:
    """The installation's document, with what the caller may do."""
    caller = callers.current()
    document = system.document(caller.may_change, services_of=_services_of).model_dump(mode="json")
    disk = document["disk"]
    is_freeing = disk["freeing"] is not None and disk["freeing"]["ended_at"] is None
    offers = [offer for offer in disk["freeable"] if caller.administers or Freeable(offer["kind"]).of_runs]
    return document | {
        "words": words,
        "SERVING": SERVING,
        "administers": caller.administers,
        "offers": offers,
        "is_freeing": is_freeing,
        "seconds": _WORKING_SECONDS if is_freeing or disk["measuring"] else _SECONDS,
    }


def _services_of(machines: Sequence[MachineAnswer]) -> Services:
    return _services.get(None, lambda: system.services(machines))


TEMPLATES.globals |= {"database_trouble": services.database_trouble, "version_of": version_of}
view = View("/system", "system.html", installation, without_database="system_unreachable.html")
