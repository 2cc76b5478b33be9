"""Database, broker, versions and limits of the installation as dictionaries. Read-only."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from worker import services
from worker.machine import measurement
from worker.settings import get_settings

_LIMITS = (
    "upload_limit_bytes",
    "token_cache_bytes",
    "connections",
    "lease_seconds",
    "max_attempts",
    "overtaking_seconds",
)


def document(machines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """`database`, `broker`, `versions` and `limits`; `machines` are those of `app.documents.system.fleet`.

    Takes about a second if the broker is unreachable.
    """
    settings = get_settings()
    return {
        "database": asdict(services.database_facts()),
        "broker": asdict(services.broker_state()),
        "versions": versions(machines),
        "limits": {name: getattr(settings, name) for name in _LIMITS} | {"data_dir": str(settings.data_dir)},
    }


def versions(machines: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The version of each package in this process's environment (None if it is not installed), and those of the workers."""
    here = measurement.versions()
    reporting = [machine["versions"] for machine in machines if machine["state"] not in ("lost", "stopped")]
    return [
        {
            "package": package,
            "here": here.get(package),
            "workers": sorted({found[package] for found in reporting if package in found}),
        }
        for package in measurement.PACKAGES
    ]
