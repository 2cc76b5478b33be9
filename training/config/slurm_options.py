"""Options of a Slurm job as text: `partition=gpu, time=12:00:00`. Only those that choose resources; no torch."""

import re
from typing import Any

NAMES = {
    "partition": "partition, or several separated by commas",
    "account": "account that is charged",
    "qos": "quality of service",
    "time": "time limit: minutes, HH:MM:SS or D-HH:MM:SS",
    "constraint": "features that the nodes need",
    "reservation": "reservation",
    "gres": "GRES name of a GPU, such as gpu:h100; cpu for nodes without GPUs",
    "cpus-per-task": "CPU cores of each process",
    "mem": "host memory on each node, such as 64G",
    "nodelist": "nodes to use",
    "exclude": "nodes to avoid",
}
"""The options that a run may choose, by the names of sbatch, with what they mean. No other option is passed on: sbatch has some
that name files or other users."""

_VALUE = re.compile(r"[\w.,:;&|()\[\]*+@/=-]+", re.ASCII)
_TIME = re.compile(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", re.ASCII)
_NEXT = re.compile(r",\s*(?=[A-Za-z_-]+\s*=)")


def canonical(given: Any) -> str | None:
    """The options as `name=value, name=value`, from such a text or a mapping; None if there are none. Raises ValueError if
    an option is unknown, or a value is one that no option has."""
    values = {str(name): str(value) for name, value in given.items()} if isinstance(given, dict) else parse(given)
    checked = {name.replace("_", "-"): value for name, value in values.items()}
    for name, value in checked.items():
        if name not in NAMES:
            raise ValueError(f"{name} is not one of the options {', '.join(NAMES)}")
        if not _VALUE.fullmatch(value):
            raise ValueError(f"{name} is {value!r}, which is not a value of that option")
    return ", ".join(f"{name}={value}" for name, value in checked.items()) or None


def parse(text: str | None) -> dict[str, str]:
    """The options by name; a value may contain commas, as in `nodelist=n1,n2, time=60`. Raises ValueError if a part is not
    name=value."""
    values = {}
    for part in filter(None, map(str.strip, _NEXT.split(text or ""))):
        name, separator, value = part.partition("=")
        if not separator:
            raise ValueError(f"{part!r} is not name=value")
        values[name.strip()] = value.strip()
    return values


def seconds(time: str) -> int | None:
    """A time limit as sbatch reads it, in seconds: M, M:S, H:M:S, D-H, D-H:M or D-H:M:S; None for another text or no limit."""
    if not (match := _TIME.fullmatch(time)):
        return None
    days, parts = int(match[1] or 0), [int(part) for part in match[2].split(":")]
    if match[1] is None and len(parts) < 3:
        parts = [0, *parts]
    hours, minutes, rest = (*parts, 0, 0)[:3]
    return 86_400 * days + 3600 * hours + 60 * minutes + rest
