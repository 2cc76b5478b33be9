"""A simulated Slurm controller: nodes that fail and are repaired, and jobs that wait for nodes, in virtual time.

Jobs start in the order of their numbers, each on any nodes that are free; one that does not fit blocks later ones, as without
backfill. Compared with Slurm 22.05 in tests/whole/test_scale.py: states, reasons, requeueing of jobs whose node is lost.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.scale.cluster.timeline import Timeline

REQUEUE_SECONDS = 121.0  # after which Slurm starts a requeued job at the earliest
KILL_SECONDS = 5.0
REMEMBERED_SECONDS = 300.0  # MinJobAge
PENDING, RUNNING, COMPLETING = "PENDING", "RUNNING", "COMPLETING"
CANCELLED, COMPLETED = "CANCELLED", "COMPLETED"


@dataclass
class SimulatedJob:
    """A job. `not_before`, `started` and `ended` are seconds since the epoch; `starts` counts how often it was started."""

    number: int
    name: str
    wanted: int
    script: str
    state: str = PENDING
    reason: str = "None"
    not_before: float = 0.0
    started: float | None = None
    ended: float | None = None
    starts: int = 0
    held: bool = False
    nodes: list[int] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.state in (CANCELLED, COMPLETED)


class Inside(Protocol):
    """What happens inside of jobs."""

    def job_started(self, job: SimulatedJob) -> None:
        """The job's script starts on its first node."""

    def job_killed(self, job: SimulatedJob) -> None:
        """Slurm ends the processes of the job: SIGTERM, then SIGKILL."""


class UnknownJob(ValueError):  # noqa: N818
    """No job has this number."""


class Controller:
    """Nodes 1 to `count`, and their jobs. `detection_seconds`: after which a silent node counts as lost (SlurmdTimeout)."""

    def __init__(self, timeline: Timeline, count: int, detection_seconds: float) -> None:
        self.timeline, self.count, self.detection_seconds = timeline, count, detection_seconds
        self.inside: Inside | None = None
        self.jobs: dict[int, SimulatedJob] = {}
        self.silent: set[int] = set()
        self.down: set[int] = set()  # lost or drained; no job starts there
        self._free = set(range(1, count + 1))
        self._number = 0

    @property
    def free(self) -> set[int]:
        """Nodes without a job that jobs may use."""
        return self._free - self.down - self.silent

    def job_on(self, node: int) -> SimulatedJob | None:
        return next((job for job in self.jobs.values() if not job.over and node in job.nodes), None)

    def submit(self, name: str, wanted: int, script: str, *, held: bool = False) -> int:
        """Queues a job and returns its number."""
        self._number += 1
        self.jobs[self._number] = SimulatedJob(self._number, name, wanted, script, held=held)
        self.timeline.after(0, self.schedule)
        return self._number

    def listed(self) -> list[SimulatedJob]:
        """Jobs that have not ended, or only lately."""
        oldest = self.timeline.now - REMEMBERED_SECONDS
        for job in [job for job in self.jobs.values() if job.ended is not None and job.ended < oldest]:
            del self.jobs[job.number]
        return list(self.jobs.values())

    def cancel(self, number: int, name: str | None = None) -> None:
        """Cancels a job, if it has the name; a running one completes when its processes are gone, or its silent nodes are lost."""
        job = self._job(number)
        if name not in (None, job.name):
            return
        if job.state == PENDING:
            self._end(job, CANCELLED)
        elif job.state == RUNNING:
            job.state = COMPLETING
            self._kill(job)
            if not self.silent & set(job.nodes):
                self.timeline.after(KILL_SECONDS, lambda: self._end(job, CANCELLED))

    def requeue(self, number: int) -> None:
        """Puts a running job back into the queue."""
        job = self._job(number)
        if job.state == RUNNING:
            self._kill(job)
            self._queue_again(job)

    def script_ended(self, job: SimulatedJob) -> None:
        """The job's script has ended by itself."""
        if job.state == RUNNING:
            self._end(job, COMPLETED)

    def fall_silent(self, node: int) -> None:
        """The node stops answering; after `detection_seconds` it counts as lost."""
        self.silent.add(node)
        self.timeline.after(self.detection_seconds, lambda: self._lose(node))

    def drain(self, node: int) -> None:
        """No further job starts on the node until it is repaired."""
        self.down.add(node)

    def repair(self, node: int) -> None:
        self.silent.discard(node)
        self.down.discard(node)
        self.schedule()

    def schedule(self) -> None:
        """Starts waiting jobs, the oldest first."""
        blocked = False
        for job in [job for job in self.jobs.values() if job.state == PENDING]:
            job.reason = self._why(job, blocked)
            if job.reason == "None":
                self._start(job)
            blocked = blocked or job.reason == "Resources"

    def _why(self, job: SimulatedJob, blocked: bool) -> str:
        if job.held:
            return "JobHeldUser"
        if job.not_before > self.timeline.now:
            return "BeginTime"
        if job.wanted > self.count:
            return "PartitionConfig"
        if blocked:
            return "Priority"
        return "None" if job.wanted <= len(self.free) else "Resources"

    def _start(self, job: SimulatedJob) -> None:
        job.nodes = sorted(self.free)[: job.wanted]
        self._free -= set(job.nodes)
        job.state, job.started, job.starts = RUNNING, self.timeline.now, job.starts + 1
        if self.inside:
            self.inside.job_started(job)

    def _lose(self, node: int) -> None:
        if node not in self.silent:
            return
        self.down.add(node)
        job = self.job_on(node)
        if job is not None and job.state == RUNNING:
            self._kill(job)
            self._queue_again(job)
        elif job is not None and job.state == COMPLETING:
            self._end(job, CANCELLED)

    def _kill(self, job: SimulatedJob) -> None:
        if self.inside:
            self.inside.job_killed(job)

    def _queue_again(self, job: SimulatedJob) -> None:
        self._release(job.nodes)
        job.nodes, job.state, job.reason = [], PENDING, "BeginTime"
        job.started, job.not_before = None, self.timeline.now + REQUEUE_SECONDS
        self.timeline.at(job.not_before, self.schedule)

    def _end(self, job: SimulatedJob, state: str) -> None:
        if job.over:
            return
        self._release(job.nodes)
        job.state, job.ended = state, self.timeline.now
        self.timeline.after(0, self.schedule)

    def _release(self, nodes: Iterable[int]) -> None:
        self._free |= set(nodes)

    def _job(self, number: int) -> SimulatedJob:
        if number not in self.jobs:
            raise UnknownJob(number)
        return self.jobs[number]
