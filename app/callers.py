"""Who calls: the person behind a request, what of this machine they may name, and what they may change.

app/authentication.py sets the caller at the start of each request, in a context variable that Gradio copies into its threads.
The command line sets none: it acts for the user who runs the server.
"""

from contextvars import ContextVar
from dataclasses import dataclass, field

from app.peers import is_loopback
from training.fields import Problem
from worker.models import LOCAL
from worker.reach import EVERYTHING, Reach, allowed
from worker.settings import get_settings


@dataclass(frozen=True)
class Caller:
    """A person, by the name that owns what they make. `here`: a process of theirs on this machine is known to call."""

    name: str = LOCAL
    admin: bool = False
    here: bool = True

    @property
    def is_local(self) -> bool:
        """Whether it is the user who runs the server."""
        return self.name == LOCAL

    @property
    def reach(self) -> Reach:
        """The files of this machine that they may name: all, for its server's user; on a network a token may be overheard."""
        trusted = self.is_local and (self.here or is_loopback(get_settings().host))
        return EVERYTHING if trusted else allowed(pushes=self.is_local)

    def may_change(self, owner: str) -> bool:
        """Whether they may change what belongs to `owner`."""
        return self.is_local or self.admin or self.name == owner


class Forbidden(PermissionError):  # noqa: N818
    """Somebody else's run or data set, asked to change; `problem` says whose."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.message} {problem.fix}")
        self.problem = problem


@dataclass
class Call:
    """A request under way: who makes it, and what was refused to them, which is then answered with 403."""

    caller: Caller = Caller()
    refused: list[Problem] = field(default_factory=list)


_call: ContextVar[Call | None] = ContextVar("call", default=None)


def begin(caller: Caller) -> Call:
    """Makes `caller` the one who calls, until this request has been answered."""
    call = Call(caller)
    _call.set(call)
    return call


def current() -> Caller:
    """Who calls."""
    call = _call.get()
    return call.caller if call else Caller()


def check_change(field: str, value: str, owner: str) -> None:
    """Sees that the caller may change what `owner` owns.

    Raises:
        Forbidden: they may not; `field` and `value` say what it is, such as run and its id.
    """
    if current().may_change(owner):
        return
    whose = "the user who runs the server" if owner == LOCAL else owner
    problem = Problem(field, value, f"belongs to {whose}.", f"Ask {whose} or an admin to change it.")
    if (call := _call.get()) is not None:
        call.refused.append(problem)
    raise Forbidden(problem)
