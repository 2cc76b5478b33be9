"""Separates a log line's text from what launchers, schedulers and log collectors put before it."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

# What launchers put before each line: torch's own hook, torchrun --tee, Lightning, mpirun.
_RANK = re.compile(r"\s*(?:\[(rank|default)(\d{1,5})\]:|\[rank: ?(\d{1,5})\]|\[\d+,(\d{1,5})\]<std(?:err|out)>:) ?")
_NAMED = re.compile(r"\[(?:PG [^\]]*)?[Rr]ank[: ]?(\d{1,5})\]")
_RAY = re.compile(r"(?:\x1b\[\d+m)?\(\w[\w.:]* pid=\d+(?:, ip=[\w.:]+)?\)(?:\x1b\[0m)? ?")
_SRUN = re.compile(r"\s{0,4}(\d{1,4}): ")
_LAUNCHER = re.compile(r"torch[./]distributed[./](?:elastic|run\b|launch)|deepspeed[./]launcher")
"""Output of a launcher that starts the ranks of a node itself: the tasks of srun are then nodes."""

_EVERY_LINE = (
    re.compile(r"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*[ \t](?:std(?:out|err) [FP] )?"),  # Kubernetes, docker logs -t
    re.compile(r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [^\s:\[]+(?:\[\d+\])?: "),  # journald, syslog
    re.compile(r"[A-Za-z0-9][\w.-]*(?:\[\w+\])? +\| "),  # docker compose, foreman
    re.compile(r"\[pod/[^\]]+\] "),  # kubectl logs --prefix
    re.compile(r"[a-z][\w.-]{0,63}: "),  # pdsh and DeepSpeed's launcher: the host
    re.compile(r"\[(?:INFO|ERROR|WARNING|DEBUG|STDOUT|STDERR)\] ?", re.I),  # programs that show another's output
    re.compile(r"> "),  # quoted in an e-mail or an issue
)
"""Prefixes that count only if nearly every line has them."""


@dataclass(frozen=True)
class Read:
    """A line without its prefixes: the node and the rank that printed it, if they are marked, and the text."""

    node: int | None
    rank: int | None
    text: str


def without(lines: Sequence[str]) -> list[Read]:
    """Each line without prefixes."""
    texts = list(lines)
    changed = True
    while changed:
        changed = False
        for prefix in _EVERY_LINE:
            if _mostly(prefix, texts):
                texts = [prefix.sub("", text, count=1) if prefix.match(text) else text for text in texts]
                changed = True
    if not _mostly(_SRUN, texts):
        return [_read(None, None, text) for text in texts]
    of_nodes = any(_LAUNCHER.search(text) for text in texts)
    return [_read_numbered(text, of_nodes=of_nodes) for text in texts]


def _mostly(prefix: re.Pattern[str], texts: Sequence[str]) -> bool:
    """True if nearly every line with text begins with the prefix."""
    written = [text for text in texts if text.strip()]
    return len(written) > 2 and sum(bool(prefix.match(text)) for text in written) > 0.8 * len(written)


def _read_numbered(text: str, *, of_nodes: bool) -> Read:
    """A line that begins with the number of a task of srun: a node if a launcher runs in each task, otherwise a rank."""
    label = _SRUN.match(text)
    if label is None:
        return _read(None, None, text)
    number, text = int(label[1]), text[label.end() :]
    return _read(number, None, text) if of_nodes else _read(None, number, text)


def _read(node: int | None, rank: int | None, text: str) -> Read:
    text = _RAY.sub("", text, count=1) if _RAY.match(text) else text
    while mark := _RANK.match(text):
        kind, *numbers = mark.groups()
        # torchrun --tee gives the local rank; torch's own mark, further in, gives the global rank.
        rank = int(next(number for number in numbers if number)) if rank is None or kind == "rank" else rank
        text = text[mark.end() :]
    if rank is None and (named := _NAMED.search(text)):
        rank = int(named[1])
    return Read(node, rank, text)
