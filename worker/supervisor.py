"""One attempt at a run, from claim to end: starts its training process, follows it, and says what became of it.

It is a process of its own that outlives the worker which started it, as a container runtime's shim does. What trains dies
with it. It holds the run by a lease; once that is lost it ends the training and touches nothing more.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from training import disk
from training.config import RunConfig
from training.lineage import Lineage
from training.step_down import stepped_down
from worker import (
    archive,
    closing,
    database,
    launcher,
    outcome,
    process,
    run_diagnosis,
    runs,
    standby,
    submit,
    token_cache,
)
from worker.launcher import Launch
from worker.lease import Lease, steady
from worker.lineage import lineage
from worker.models import Request, Run, Status
from worker.outcome import Ending, Verdict
from worker.patience import UNREACHABLE, Patience, Unproved
from worker.reports import LOG_FILE, Reports, Seen, last_word
from worker.run_disk import RunDisk
from worker.settings import get_settings
from worker.trainer import Trainer, end_left_behind, environment
from worker.watch import Graces, Watch

log = logging.getLogger(__name__)

CONFIG_FILE = "config.json"
_LOOK_SECONDS = 0.5
_EARLY_LOOK_SECONDS = 0.1  # somebody has just pressed Start
_EARLY_SECONDS = 10.0

Launcher = Callable[[RunConfig, Path, list[str], int], Launch]


class Supervisor:
    """One attempt at one run. `launch` makes the command that trains."""

    def __init__(
        self,
        run_id: str,
        attempt: int,
        *,
        launch: Launcher = launcher.launch,
        graces: Graces | None = None,
    ) -> None:
        self._run_id, self._attempt = run_id, attempt
        self._launch = launch
        self._settings = get_settings()
        self._graces = graces or Graces()
        self._run_dir = self._settings.runs_dir / run_id
        self._lease = Lease(run_id, attempt, self._settings)
        self._reports: Reports | None = None
        self._asked: Request | None = None
        self._disk = RunDisk(self._run_dir, self._settings)
        self._database = Patience(self._lease, self._disk.database_full)

    def run(self) -> int:
        """Sees the attempt through. Returns 0, or 1 where the run had to be left to others."""
        process.set_child_subreaper()
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            if self._database.insist(self._lease.adopt, is_fenced=True):
                self._close(self._outcome())
            else:
                self._was_starved()
            return 0
        except (runs.LeaseLost, Unproved) as error:
            log.error("%s The run is left to others.", error)
            process.kill_descendants()
            self._was_starved()
            return 1
        finally:
            process.kill_descendants()
            self._lease.release()
            self._ring_next()

    def _on_terminate(self, *_: object) -> None:
        """The machine goes down: as if it were asked to go back to the queue."""
        self._asked = self._asked or Request.REQUEUE

    def _outcome(self) -> Verdict:
        """The attempt's outcome, whatever happens: the one place where an unexpected error ends."""
        try:
            return self._attempt_it()
        except (runs.LeaseLost, Unproved):
            raise
        except Exception as error:
            log.exception("the attempt failed")
            process.kill_descendants()
            if disk.is_full(error, self._run_dir):
                self._disk.found_full()
            return outcome.unsupervised(error, self._reports.seen if self._reports else Seen(), self._disk.full)

    def _attempt_it(self) -> Verdict:
        """The story of an attempt, up to its outcome."""
        run = self._database.insist(self._load)
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if run.attempt > 1:
            end_left_behind(run.id)
        reports = self._reports = Reports(run, self._run_dir)
        self._database.insist(lambda: reports.store_leftovers(self._beat))
        done = last_word(self._run_dir)
        if done and done.outcome == "finished" and archive.result_folder(self._run_dir):
            return self._packed(Verdict(Status.FINISHED, summary=done.summary))
        config = self._database.insist(lambda: self._config(run))
        self._database.insist(lambda: self._lineage(run)).write(self._run_dir)
        return self._packed(self._train(run, config, reports))

    def _train(self, run: Run, config: RunConfig, reports: Reports) -> Verdict:
        killed_before = process.memory_kills()
        output = self._run_dir / LOG_FILE
        printed_before = output.stat().st_size if output.exists() else 0
        self._database.attempt(self._beat)  # each part of a start may take as long as a lease on a busy machine
        trainer = self._start(run, config)
        self._database.attempt(self._beat)
        self._foresee()
        watch = Watch(trainer, reports.seen, self._graces)
        self._lease.guard(trainer.kill)
        code = self._follow(trainer, watch, reports)
        self._disk.look_back()
        self._drain(reports)
        if self._lease.ended_training and not reports.seen.finished and not self._disk.full:
            reason = "The database did not answer for so long that the training had to be ended."
            return Verdict(Status.QUEUED, f"{reason} {outcome.goes_on(reports.seen)}", exit_code=code)
        ending = Ending(
            exit_code=code,
            asked=self._asked,
            forced=watch.forced,
            out_of_memory=killed_before is not None and (process.memory_kills() or 0) > killed_before,
            full_disk=self._disk.full,
        )
        verdict = replace(outcome.judge(reports.seen, ending), exit_code=code)
        if self._disk.full:
            return verdict  # what the log says of it is no news
        return run_diagnosis.explained(verdict, reports.seen, run.config, run.stepped_down, output, printed_before)

    def _load(self) -> Run:
        with database.read() as session:
            return runs.get(session=session, run_id=self._run_id)

    def _config(self, run: Run) -> RunConfig:
        """The run's configuration for the trainer.

        Raises:
            ConfigError: its data are no longer there.
        """
        with database.read() as session:
            return submit.resolve(stepped_down(RunConfig.model_validate(run.config), run.stepped_down), session)

    def _lineage(self, run: Run) -> Lineage:
        with database.read() as session:
            return lineage(session=session, run=run)

    def _start(self, run: Run, config: RunConfig) -> Trainer:
        """Starts the training process.

        Raises:
            OSError: the disk is full, or the process cannot be started.
        """
        self._disk.begin()
        token_cache.make_room()
        _write_whole(self._run_dir / CONFIG_FILE, config.model_dump_json(indent=2))
        launch = self._launch(config, self._run_dir, run.devices, os.cpu_count() or 1)
        return Trainer(launch.argv, self._run_dir, environment(launch, run.id, self._settings))

    def _foresee(self) -> None:
        """Keeps what the run should take, to be compared with what it takes. The training has begun and does not wait for it."""
        from worker import devices, predicted

        try:
            run = self._load()
            config = stepped_down(RunConfig.model_validate(run.config), run.stepped_down)
            forecast = predicted.of_run(config, devices.machine())
            with database.write() as session:
                runs.get(session=session, run_id=self._run_id).forecast = forecast
        except Exception:
            log.exception("no forecast")  # which ends no run

    def _follow(self, trainer: Trainer, watch: Watch, reports: Reports) -> int:
        """Until the training process has ended: stores what it reports, keeps the lease, obeys. Returns its exit code."""
        began = steady()
        while (code := trainer.exit_code()) is None:
            reports.read()
            self._database.attempt(self._beat)
            self._database.attempt(reports.store)
            if self._disk.full and not self._disk.has_room:
                trainer.kill()  # what it saves now would take the room for the run's last words
            watch.look(self._asked or (Request.REQUEUE if self._disk.full else None))
            early = steady() - began < _EARLY_SECONDS and not reports.seen.step
            trainer.wait(_EARLY_LOOK_SECONDS if early else _LOOK_SECONDS)
        trainer.kill()
        if not self._lease.proved and not self._disk.full:
            self._database.regain()
        return code

    def _drain(self, reports: Reports) -> None:
        """Stores what was reported up to the end."""
        self._database.insist(reports.store, is_fenced=True)
        while reports.read(to_end=True):
            self._database.insist(reports.store, is_fenced=True)

    def _packed(self, verdict: Verdict) -> Verdict:
        """The verdict on a finished run once its result can be downloaded."""
        if verdict.status is Status.FINISHED:
            archive.pack_results(self._run_dir, lambda: self._database.attempt(self._beat))
        return verdict

    def _close(self, verdict: Verdict) -> None:
        """Writes the verdict on the run and frees its devices.

        Raises:
            LeaseLost: the run is another's.
        """
        log.info("attempt %d of run %s: %s. %s", self._attempt, self._run_id, verdict.status.value, verdict.reason)
        self._disk.end()
        if not self._database.insist(lambda: self._write_end(verdict), is_fenced=True):
            raise runs.LeaseLost(f"Run {self._run_id} is past attempt {self._attempt}.")

    def _write_end(self, verdict: Verdict) -> bool:
        with database.write() as session:
            run = runs.get(session=session, run_id=self._run_id)
            if run.attempt != self._attempt:
                return False
            return closing.close(session=session, run=run, verdict=verdict, max_attempts=self._settings.max_attempts)

    def _beat(self) -> None:
        self._asked = self._lease.keep() or self._asked

    def _was_starved(self) -> None:
        """Others took the run for lost though this process lived: that is nothing to count against the run."""
        with contextlib.suppress(*UNREACHABLE), database.write() as session:
            runs.was_starved(session=session, run_id=self._run_id, attempt=self._attempt)

    def _ring_next(self) -> None:
        """Whoever waits longest may begin; where that cannot be said now, a worker looks by itself in a moment."""
        try:
            with database.read() as session:
                waiting = runs.waiting(session=session)
        except UNREACHABLE:
            return
        if waiting:
            from worker import queue  # Celery takes 0.2 s to import, and the training waited for it

            queue.ring(waiting[0].id)


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def main(arguments: list[str], *, launch: Launcher = launcher.launch, graces: Graces | None = None) -> int:
    """`python -m worker.supervisor RUN_ID ATTEMPT`, or `--standby` to be told both on standard input."""
    if arguments == [standby.FLAG]:
        arguments = standby.assignment(get_settings().runs_dir)
        if not arguments:  # the worker ended and has no run for us
            return 0
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    return Supervisor(arguments[0], int(arguments[1]), launch=launch, graces=graces).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
