"""Programs that Lathe runs in limited processes (worker/machine/programs.py), run in the process of the tests instead, which has
imported their libraries already."""

import contextlib
import importlib
import io
import json
import sys
from collections.abc import Sequence
from typing import Any

import pytest

from worker.machine import programs


@pytest.fixture(params=["here", pytest.param("limited", marks=pytest.mark.nightly)])
def programs_here(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes `run_for_json` call programs in this process, without limits; nightly also in their own."""
    if request.param == "here":
        monkeypatch.setattr(programs, "run_for_json", _answer)


def _answer(module: str, arguments: Sequence[str], _limits: object, *, text: str = "", **_: Any) -> Any:
    printed = io.StringIO()
    with pytest.MonkeyPatch.context() as patched, contextlib.redirect_stdout(printed):
        patched.setattr(sys, "argv", [module, *arguments])
        patched.setattr(sys, "stdin", io.StringIO(text))
        importlib.import_module(module).main()
    return json.loads(printed.getvalue().splitlines()[-1])
