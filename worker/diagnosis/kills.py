"""What Lathe writes into a run's log about the signals that it sends to training processes, and how that is read again."""

import re
import signal
from collections.abc import Collection
from dataclasses import dataclass

_SENT = re.compile(r"^Lathe sent (SIG\w+) to (processes [\d, ]+|all ranks): (.+)$", re.M)


@dataclass(frozen=True)
class Killed:
    """A kill by Lathe: the sentence that says why, and the processes; None if some of them are on other machines."""

    why: str
    pids: frozenset[int] | None = None

    def includes(self, pid: int | None) -> bool:
        """True if it killed the process; None stands for the only rank, or the launcher."""
        return None in (pid, self.pids) or pid in (self.pids or ())

    def and_also(self, pids: frozenset[int] | None) -> "Killed":
        """The same with further processes."""
        return Killed(self.why, None if self.pids is None or pids is None else self.pids | pids)


def sent(number: signal.Signals, pids: Collection[int] | None, why: str) -> str:
    """The line for a run's log. `pids` is None for the ranks of all machines."""
    to = "all ranks" if pids is None else f"processes {', '.join(map(str, sorted(pids)))}"
    return f"Lathe sent {number.name} to {to}: {why}"


def killed_in(log: str) -> Killed | None:
    """The kill by Lathe that a log tells of; None if there is none."""
    killed: Killed | None = None
    for name, to, why in _SENT.findall(log):
        if name == signal.SIGKILL.name:
            pids = None if to == "all ranks" else frozenset(map(int, re.findall(r"\d+", to)))
            killed = killed.and_also(pids) if killed else Killed(why, pids)
    return killed
