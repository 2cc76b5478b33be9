"""sbatch, squeue, scancel, scontrol and sinfo for the simulated controller: the same arguments and output as Slurm 22.05's.

Only what the engine uses, and `--hold`; any other option is refused, as Slurm refuses options that it does not know.
"""

import re
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple

from benchmarks.scale.cluster.controller import Controller, SimulatedJob, UnknownJob

PARTITION = "batch"
_SBATCH = {
    "parsable", "hold", "requeue", "job-name", "comment", "nodes", "ntasks-per-node", "output", "open-mode", "signal", "chdir",
    "gres", "partition",
}  # fmt: skip
_SQUEUE = {"user", "states", "noheader", "format"}
_SINFO = {"noheader", "format"}
_SCANCEL = {"name"}


class Answer(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: int = 0
    out: str = ""
    error: str = ""


class UnknownOption(ValueError):  # noqa: N818
    """The command has no such option."""


class StandIn:
    """Slurm's client commands on a simulated controller."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self.calls: dict[str, int] = {}
        self._commands: dict[str, Callable[[list[str], str], Answer]] = {
            "sbatch": self._sbatch, "squeue": self._squeue, "scancel": self._scancel, "scontrol": self._scontrol,
            "sinfo": self._sinfo,
        }  # fmt: skip

    def run(self, argv: list[str], text: str = "") -> Answer:
        """What the command answers; `text` is its standard input."""
        command = argv[0]
        self.calls[command] = self.calls.get(command, 0) + 1
        try:
            return self._commands[command](argv[1:], text)
        except UnknownOption as error:
            message = f"{command}: unrecognized option '{error}'\nTry \"{command} --help\" for more information\n"
            return Answer(255, error=message)

    def _sbatch(self, arguments: list[str], script: str) -> Answer:
        options = _options(arguments, _SBATCH)
        if (partition := options.get("partition", PARTITION)) != PARTITION:
            first = f"sbatch: error: invalid partition specified: {partition}\n"
            return Answer(
                1, error=f"{first}sbatch: error: Batch job submission failed: Invalid partition name specified\n"
            )
        number = self._controller.submit(
            options.get("job-name", "sbatch"), int(options.get("nodes", "1")), script, held="hold" in options
        )
        return Answer(out=f"{number}\n" if "parsable" in options else f"Submitted batch job {number}\n")

    def _squeue(self, arguments: list[str], _: str) -> Answer:
        options = _options(arguments, _SQUEUE)
        self._controller.schedule()
        jobs = self._controller.listed()
        return Answer(out="".join(f"{_filled(options['format'], _job_fields(job))}\n" for job in jobs))

    def _scancel(self, arguments: list[str], _: str) -> Answer:
        *chosen, number = arguments
        name = _options(chosen, _SCANCEL).get("name")
        try:
            self._controller.cancel(int(number), name)
        except UnknownJob:
            return Answer(1, error=f"scancel: error: Kill job error on job id {number}: Invalid job id specified\n")
        return Answer()

    def _scontrol(self, arguments: list[str], _: str) -> Answer:
        match arguments:
            case ["show", "hostnames", listed]:
                return Answer(out="".join(f"{name}\n" for name in expanded(listed)))
            case ["requeue", number]:
                try:
                    self._controller.requeue(int(number))
                except UnknownJob:
                    return Answer(1, error=f"Invalid job id specified for job {number}\n")
                return Answer()
        return Answer(1, error=f"invalid keyword: {' '.join(arguments)}\n")

    def _sinfo(self, arguments: list[str], _: str) -> Answer:
        options = _options(arguments, _SINFO)
        lines = [
            _filled(
                options["format"], {"P": f"{PARTITION}*", "D": str(count), "T": state, "l": "infinite", "G": "(null)"}
            )
            for state, count in _states(self._controller)
        ]
        return Answer(out="".join(f"{line}\n" for line in lines))


def compressed(numbers: list[int]) -> str:
    """Nodes as Slurm lists them: `n[1-3,7]`."""
    if len(numbers) < 2:
        return "".join(f"n{number}" for number in numbers)
    spans = []
    for _, group in groupby(enumerate(sorted(numbers)), key=lambda pair: pair[1] - pair[0]):
        span = [number for _, number in group]
        spans.append(str(span[0]) if len(span) == 1 else f"{span[0]}-{span[-1]}")
    return f"n[{','.join(spans)}]"


def expanded(listed: str) -> Iterator[str]:
    """The names in a list such as `n[1-3,7],n9`."""
    for name, spans, plain in re.findall(r"([^,\[]+)\[([^\]]*)\]|([^,]+)", listed):
        if plain:
            yield plain
        for span in spans.split(",") if spans else ():
            first, _, last = span.partition("-")
            yield from (f"{name}{number}" for number in range(int(first), int(last or first) + 1))


def _options(arguments: list[str], known: set[str]) -> dict[str, str]:
    found = {}
    for argument in arguments:
        name, _, value = argument.removeprefix("--").partition("=")
        if not argument.startswith("--") or name not in known:
            raise UnknownOption(argument)
        found[name] = value
    return found


def _filled(form: str, fields: dict[str, str]) -> str:
    return re.sub(r"%([a-zA-Z])", lambda match: fields[match[1]], form)


def _job_fields(job: SimulatedJob) -> dict[str, str]:
    moment = job.started or job.ended or (0 if job.held else job.not_before)
    return {
        "i": str(job.number), "T": job.state, "j": job.name, "P": PARTITION, "N": compressed(job.nodes),
        "D": str(job.wanted), "S": f"{moment:.0f}" if moment else "N/A", "r": job.reason,
    }  # fmt: skip


def _states(controller: Controller) -> Iterator[tuple[str, int]]:
    down, free = len(controller.down), len(controller.free)
    for state, count in (("down", down), ("allocated", controller.count - down - free), ("idle", free)):
        if count:
            yield state, count
