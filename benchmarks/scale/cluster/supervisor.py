"""Supervisors in simulated jobs: they claim, hold, report and close attempts with the product's functions; only the training is
a model."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from benchmarks.scale.cluster.controller import Controller, SimulatedJob
from benchmarks.scale.cluster.ledger import Account
from benchmarks.scale.cluster.parameters import DAY, Parameters
from benchmarks.scale.cluster.training import Training
from training.run_folder import checkpoints, events
from training.run_folder.paths import checkpoint_dir, checkpoint_step
from worker.diagnosis.kills import Killed
from worker.engines.job_side import supervisor
from worker.machine.process_identity import Identity
from worker.settings import get_settings
from worker.store import database, history
from worker.store.tables import Request, Run
from worker.store.work import RUN
from worker.supervision import closing, outcome
from worker.supervision.outcome import Ending
from worker.supervision.report_reader import AttemptProgress

_PYTHON_SECONDS = 3.0
_RETRY_SECONDS = 2.0
_HELD = 3650 * DAY  # stands for renewals every few seconds
_UNKNOWN: dict[str, Any] = {
    "train_rows": 1,
    "eval_rows": 0,
    "skipped_rows": 0,
    "truncated_rows": 0,
    "target_modules": [],
    "engine": "none",
}
_NUMBERS: dict[str, Any] = {"zero_stage": None, "precision": "bf16", "trainable_parameters": 1, "total_parameters": 1}
CRASH = "CUDA error: uncorrectable ECC error encountered"


class _Later(Exception):  # noqa: N818
    """The claim has to be tried again."""


def _sleep(_: float) -> None:
    raise _Later


@dataclass
class Shared:
    """What all supervisors of a simulation use. `changed` says that a worker's round may have something to do from a moment on."""

    parameters: Parameters
    controller: Controller
    accounts: dict[str, Account]
    chance: random.Random
    changed: Callable[[float], None]


class Supervisor:
    """One start of a job's script. Time passes between the calls of its methods, which the timeline makes."""

    def __init__(self, shared: Shared, job: SimulatedJob, run_id: str) -> None:
        self._shared, self._job, self.run_id = shared, job, run_id
        self._timeline, self._started = shared.controller.timeline, shared.controller.timeline.now
        self._account = shared.accounts[run_id]
        first, start = f"n{job.nodes[0]}", f"{job.number}.{job.starts}"
        self._me, self._nodes = Identity(first, job.number, start), [f"n{node}" for node in job.nodes]
        self._run: Run | None = None
        self._seen = AttemptProgress()
        self._training: Training | None = None
        self._began = 0.0
        self._failed: float | None = None
        self._alive = True  # the supervisor itself
        self._over = False  # nothing of it is left
        self._stored = 0  # batches of records
        self._is_first = self._account.job_started(self._started)
        self._timeline.after(_PYTHON_SECONDS, self._claim)
        self._deadline = self._started + max(4 * shared.parameters.lease_seconds, 600)

    def _claim(self) -> None:
        if self._over or not self._alive:
            return
        clock = SimpleNamespace(monotonic=lambda: self._timeline.now, sleep=_sleep)
        with mock.patch.object(supervisor, "me", lambda: self._me), mock.patch.object(supervisor, "time", clock):
            try:
                self._run = supervisor.claim_run(self.run_id, str(self._job.number), self._nodes)
            except _Later:
                if self._timeline.now < self._deadline:
                    self._timeline.after(_RETRY_SECONDS, self._claim)
                    return
        if self._run is None:
            self._end_job()
            return
        with database.write() as session:
            attempt, owner = self._run.attempt, str(self._me)
            held = RUN.adopt(session, (self.run_id, attempt), holder=owner, lease_seconds=_HELD, phase="starting")
            assert held
        self._report(events.PhaseStarted(phase="loading model", time=self._timeline.now))
        self._timeline.after(self._shared.parameters.load_seconds, self._train)

    def _train(self) -> None:
        if self._over or self._failed is not None or self._run is None:
            return
        folder = get_settings().runs_dir / self.run_id
        newest, rejected = checkpoints.newest_checkpoint(folder)
        for leftover in checkpoints.unsealed(folder):
            checkpoints.discard(leftover)
        first = (checkpoint_step(newest) or 0) if newest else 0
        now, last = self._timeline.now, self._account.total_steps
        size: dict[str, Any] = {"world_size": 8 * len(self._nodes), "total_steps": last, "start_step": first}
        found = [events.Resumed(step=first, path=newest.name, rejected=rejected, time=now)] if newest else []
        planned = events.Planned(time=now, **size, **_UNKNOWN, **_NUMBERS)
        self._report(*found, planned, events.PhaseStarted(phase="training", time=now))
        self._account.begins_training(first)
        self._training, self._began = Training(first, last, self._shared.parameters), now
        self._timeline.after(self._training.seconds, self._finish)

    def _finish(self) -> None:
        if self._over or self._failed is not None or self._training is None:
            return
        self._stop_training(self._timeline.now)
        done = events.Finished(outcome="finished", step=self._training.last, summary={}, time=self._timeline.now)
        self._report(done)
        self._close(Ending(exit_code=0))
        self._end_job()

    def rank_crashes(self) -> None:
        """A rank reports an error; the supervisor ends the attempt and its job."""
        if self._over or self._run is None or self._failed is not None:
            return
        self._fail()
        phase = "training" if self._training else "loading model"
        failure = events.Failed(rank=0, error="RuntimeError", message=CRASH, phase=phase, time=self._timeline.now)
        self._report(failure)
        self._close(Ending(exit_code=1))
        self._end_job()

    def node_falls_silent(self, node: int) -> None:
        """The ranks wait for those of the node; with the first node the supervisor is lost."""
        if self._over:
            return
        if self._failed is None:
            self._fail()
        if node != self._job.nodes[0] or not self._alive:
            return
        self._alive = False
        if self._run is not None:
            since = self._shared.chance.uniform(0, get_settings().renew_seconds)  # its last renewal
            left = self._shared.parameters.lease_seconds - since
            with database.write() as session:
                attempt, owner = self._run.attempt, str(self._me)
                RUN.renew(session, (self.run_id, attempt), holder=owner, lease_seconds=left)
            self._shared.changed(self._timeline.now + left)

    def killed(self) -> None:
        """Slurm ends the job: a supervisor that is left requeues the run, as after SIGTERM."""
        if self._over:
            return
        if self._failed is None:
            self._fail()
        if self._alive and self._run is not None:
            self._close(Ending(exit_code=-15, asked=Request.REQUEUE, killed=Killed("the end of the job.")))
        self._end()

    def _fail(self) -> None:
        """From now on no step is trained."""
        self._failed = self._timeline.now
        self._account.failures += 1
        if self._training:
            self._stop_training(self._failed)

    def _stop_training(self, now: float) -> None:
        """Books the time of the training, and leaves the files that it has written."""
        training, elapsed = self._training, now - self._began
        assert training
        done = elapsed >= training.seconds - 0.001
        saved = training.last if done else training.saved(elapsed)
        stalled = training.stalled(elapsed)
        useful = (saved - training.first) * self._shared.parameters.step_seconds
        book = self._account.seconds
        book["useful"] += useful
        if done:
            book["checkpoints"] += elapsed - useful
        else:
            book["checkpoints"] += stalled
            book["replay"] += elapsed - stalled - useful
        self._leave_files(training, elapsed, saved)
        self._account.ends_training(saved)
        step = training.last if done else training.step(elapsed)
        self._report(events.Metrics(step=step, values={"loss": 1 / (1 + math.sqrt(step))}, time=now))

    def _leave_files(self, training: Training, elapsed: float, saved: int) -> None:
        folder = get_settings().runs_dir / self.run_id
        if saved > training.first:
            size = checkpoints.seal(_written(checkpoint := checkpoint_dir(folder, saved)))
            checkpoints.prune(folder, 2)
            now, path = self._timeline.now, str(checkpoint.relative_to(folder))
            self._report(events.CheckpointSaved(step=saved, path=path, bytes=size, time=now))
        if (begun := training.writing(elapsed)) and begun > saved:
            _written(checkpoint_dir(folder, begun))

    def _report(self, *found: events.Event) -> None:
        """Stores records as the supervisor does; those of a lost supervisor stay in the file."""
        if self._run is None or not self._alive:
            return
        for one in found:
            self._seen.take(one)
        self._stored += 1
        with database.write() as session:
            stored = history.apply(
                session=session,
                run_id=self.run_id,
                attempt=self._run.attempt,
                events=found,
                new_offset=self._run.event_offset + self._stored,
            )
        if not stored:
            self._account.damage.append(f"records of attempt {self._run.attempt} were refused")

    def _close(self, ending: Ending) -> None:
        assert self._run is not None
        verdict = outcome.judge(self._seen, ending)
        with database.write() as session:
            run = session.get(Run, self.run_id)
            if run is None or run.attempt != self._run.attempt:
                return
            most = self._shared.parameters.max_attempts
            closing.close(session=session, run=run, verdict=verdict, max_attempts=most)

    def _end_job(self) -> None:
        self._end()
        self._shared.controller.script_ended(self._job)

    def _end(self) -> None:
        """The job holds its nodes no longer."""
        now, book = self._timeline.now, self._account.seconds
        self._over = True
        failed = now if self._failed is None else self._failed
        book["until noticed"] += now - failed
        started = self._began if self._training else failed
        book["first start" if self._is_first else "restart"] += started - self._started
        self._account.waits_since = now
        self._shared.changed(now)


def _written(checkpoint: Path) -> Path:
    """Writes the files of a checkpoint, except the manifest."""
    checkpoint.mkdir(parents=True, exist_ok=True)
    (checkpoint / "state.txt").write_text(checkpoint.name)
    return checkpoint
