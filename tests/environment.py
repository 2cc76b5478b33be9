"""The LATHE_ variables of a test."""

import os

import pytest

from worker.settings import PREFIX, get_settings


def use(monkeypatch: pytest.MonkeyPatch, **variables: str) -> None:
    """Sets these as the only LATHE_ variables, for this process and its child processes.

    Runs are queued without the check of their rendered rows, which takes two seconds, unless a test sets CHECK_TEMPLATES.
    """
    variables.setdefault("CHECK_TEMPLATES", "false")
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    for name, value in variables.items():
        monkeypatch.setenv(PREFIX + name, value)
    get_settings.cache_clear()
