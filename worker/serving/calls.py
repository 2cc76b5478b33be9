"""Requests of a worker to the processes that serve models."""

import logging
from dataclasses import dataclass
from typing import Any

import httpx

from worker.serving.models import Source, template_of
from worker.store.tables import ServedModel

log = logging.getLogger(__name__)

_SECONDS = 5.0
_LOAD_SECONDS = 600.0  # it waits for the answer in progress


@dataclass(frozen=True)
class Health:
    """How many requests a process answers or will, how many it has answered, and for how many seconds none came."""

    pending: int
    answered: int
    idle_seconds: float


def health(served: ServedModel) -> Health | None:
    """What a process does; None if it does not say."""
    found = _ask("GET", served, "/health")
    return Health(found["pending"], found["answered"], found["idle_seconds"]) if found else None


def drain(served: ServedModel) -> bool:
    """Lets a process take no more requests. False if it does not answer."""
    return _ask("POST", served, "/drain") is not None


def load(served: ServedModel, source: Source) -> bool:
    """Loads an adapter into a process between two answers, or takes another name for its base model. False if it cannot."""
    body = {
        "name": source.name,
        "folder": source.folder and str(source.folder),
        "arguments": template_of(source.config),
    }
    return _ask("POST", served, "/load", body, _LOAD_SECONDS) is not None


def _ask(
    method: str, served: ServedModel, path: str, body: dict[str, Any] | None = None, seconds: float = _SECONDS
) -> dict[str, Any] | None:
    if not served.address:
        return None
    headers, timeout = {"Authorization": f"Bearer {served.secret}"}, httpx.Timeout(_SECONDS, read=seconds)
    try:
        with httpx.Client(base_url=f"http://{served.address}", timeout=timeout, trust_env=False) as client:
            answer = client.request(method, path, json=body, headers=headers)
        if answer.is_success:
            return dict(answer.json())
        log.warning("served model %s refuses %s: %s", served.id, path, answer.text[:500])
    except (httpx.HTTPError, ValueError) as error:
        log.warning("served model %s does not answer %s: %s", served.id, path, error)
    return None
