"""The caller of a request, the files that they may name, and the changes that were refused.

app/web/authentication.py sets the caller of each request in a context variable, which Gradio copies into its threads. The
command line sets none: it acts for the user who runs the server.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from training.addresses import is_loopback
from training.config.run_config import RunConfig
from training.errors import Problem
from worker import allowed_paths
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.machine import turns
from worker.runs.settle import Settled, settle
from worker.sent_code import refuse_code
from worker.settings import get_settings
from worker.store import sight
from worker.store.tables import LOCAL


@dataclass(frozen=True)
class Caller:
    """A user, by the name that owns their runs and data sets. `here`: the request comes from a process on this machine."""

    name: str = LOCAL
    admin: bool = False
    here: bool = True

    @property
    def is_local(self) -> bool:
        """True for the user who runs the server."""
        return self.name == LOCAL

    @property
    def allowed(self) -> AllowedPaths:
        """The files that the caller may name: all for the server's user, unless a token over a network identified them."""
        trusted = self.is_local and (self.here or is_loopback(get_settings().host))
        return EVERYTHING if trusted else allowed_paths.allowed(pushes=self.is_local)

    @property
    def administers(self) -> bool:
        """True for admins and the user who runs the server."""
        return self.is_local or self.admin

    @property
    def sees_all(self) -> bool:
        """True if the caller sees what others own."""
        return self.administers or get_settings().visibility == "all"

    def may_change(self, owner: str) -> bool:
        """True if the caller may change what `owner` owns."""
        return self.administers or self.name == owner

    def may_share(self, owner: str) -> bool:
        """True if the caller may share what `owner` owns; there is nothing to share where all users see everything."""
        return get_settings().visibility != "all" and self.may_change(owner)


@dataclass
class Call:
    """A request: its caller, and what was refused, each with the status that the response gets."""

    caller: Caller = Caller()
    refused: list[tuple[int, Problem]] = field(default_factory=list)


_call: ContextVar[Call | None] = ContextVar("call", default=None)


def begin(caller: Caller) -> Call:
    """Sets the caller of this request, and with it what is read, and whose programs run."""
    call = Call(caller)
    _call.set(call)
    sight.limit_to(None if caller.sees_all else caller.name)
    turns.act_for(caller.name)
    return call


def current() -> Caller:
    """The caller of this request."""
    call = _call.get()
    return call.caller if call else Caller()


def settled(config: RunConfig) -> Settled:
    """What the names in a configuration stand for, as far as the caller of this request may name them."""
    caller = current()
    return settle(config, caller.allowed, caller.name)


def check_sent(values: Any) -> None:
    """Refuses code in what the caller of this request sent (worker/sent_code.py). Raises ConfigError."""
    refuse_code(values, current().allowed)


def refuse(problem: Problem, status: int = 403) -> None:
    """Records what was refused: the response gets this status, whatever the handler answers."""
    if (call := _call.get()) is not None:
        call.refused.append((status, problem))
