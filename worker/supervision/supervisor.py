"""Runs one attempt: starts the training process, monitors it, and stores the outcome.

The supervisor is a separate process that outlives the worker that started it, as a container runtime's shim does. The training
process ends with it. It holds the run by a lease; when it loses the lease it kills the training and changes nothing more.
"""

import contextlib
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from training import redaction
from training.config.run_config import Changes, RunConfig, stepped_down
from training.files import write_whole
from training.parts import present
from training.run_folder import checkpoints, full_disk, paths
from training.run_folder.events import FINISHED, PAUSED
from training.run_folder.paths import ARCHIVE_FILE, CONFIG_FILE, LOG_FILE
from training.run_folder.record import Lineage
from training.run_folder.stages import PACKING, UNDONE, Saved
from worker import allowed_rewards, celery_app
from worker.datasets import token_stores
from worker.file_store.run_files import RunFiles, while_beating
from worker.machine import processes
from worker.results import packing
from worker.runs.lineage import lineage_of
from worker.runs.settle import resolve, settle
from worker.settings import get_settings
from worker.store import claims, database, runs, waiting, work
from worker.store.database import UNREACHABLE
from worker.store.tables import Request, Run, Status
from worker.store.work import LeaseLost
from worker.supervision import closing, holders, launcher, outcome, run_diagnosis, saved_result
from worker.supervision.disk_space import RunDisk
from worker.supervision.launcher import Launch
from worker.supervision.lease import Lease, LeaseUncertain, steady
from worker.supervision.outcome import Ending, Verdict
from worker.supervision.report_reader import AttemptProgress, Reports, finished_record
from worker.supervision.training_process import Graces, TrainingProcess, Watchdog, end_left_behind, environment

log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
_EARLY_LOOK_SECONDS = 0.1  # the user has just pressed Start
_EARLY_SECONDS = 10.0

Launcher = Callable[[RunConfig, Path, list[str], int], Launch]
Starter = Callable[[list[str], Path, Mapping[str, str]], TrainingProcess]


class Supervisor:
    """One attempt at one run. `launch` builds the training command, `start` starts it.

    `outside_stop`: a SIGTERM that ranks receive from outside is a request to continue later."""

    def __init__(
        self,
        run_id: str,
        attempt: int,
        *,
        launch: Launcher = launcher.launch,
        start: Starter = TrainingProcess,
        outside_stop: bool = False,
        graces: Graces | None = None,
    ) -> None:
        self._run_id, self._attempt = run_id, attempt
        self._launch, self._start_process, self._outside_stop = launch, start, outside_stop
        self._settings = get_settings()
        self._graces = graces or Graces()
        self._run_dir = self._settings.runs_dir / run_id
        self._reports: Reports | None = None
        self._asked: Request | None = None
        self._trained = False  # before this attempt: only what follows the training is left
        self._disk = RunDisk(self._run_dir, self._settings)
        self._files = RunFiles(self._run_dir)
        self._lease = Lease(work.RUN, (run_id, attempt), self._disk.database_full)

    def run(self) -> int:
        """Runs the attempt to its end. Returns 0, or 1 if another supervisor may have the run now."""
        processes.set_child_subreaper()
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, self._on_terminate)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        try:
            if self._lease.until_answered(lambda: self._lease.adopt(phase="starting"), is_fenced=True):
                self._close(self._packed(self._with_result(self._outcome())))
            else:
                self._mark_starved()
            return 0
        except (LeaseLost, LeaseUncertain) as error:
            log.error("%s This supervisor gives up the run.", error)
            processes.kill_descendants()
            self._mark_starved()
            return 1
        finally:
            processes.kill_descendants()
            for after in present("worker.sweeps.advance:after"):
                after(self._run_id)
            self._notify_next()

    def _on_terminate(self, *_: object) -> None:
        """The machine shuts down, or the job nears its time limit (SIGUSR1): handled like a request to requeue."""
        self._asked = self._asked or Request.REQUEUE

    def _outcome(self) -> Verdict:
        """The verdict on the attempt; unexpected errors end here."""
        try:
            return self._run_attempt()
        except (LeaseLost, LeaseUncertain):
            raise
        except Exception as error:
            log.exception("the attempt failed")
            processes.kill_descendants()
            if full_disk.is_full(error, self._run_dir):
                self._disk.found_full()
            seen = self._reports.seen if self._reports else AttemptProgress()
            return outcome.unsupervised(error, seen, self._disk.full, full_disk.read_only(self._run_dir))

    def _run_attempt(self) -> Verdict:
        """Runs the attempt and returns its verdict."""
        run = self._lease.until_answered(self._load)
        self._run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        if run.attempt > 1:
            end_left_behind(run.id)
        self._files.fetch((run.event_offset, run.log_offset), self._keep_lease)
        reports = self._reports = Reports(run, self._run_dir)
        self._lease.until_answered(lambda: reports.store_leftovers(self._beat))
        done, saved = finished_record(self._run_dir), Saved.read(self._run_dir)
        left = bool(saved and saved.left(run.used, self._run_dir))
        if done and done.outcome == FINISHED and paths.saved_result(self._run_dir) and not left:
            return Verdict(Status.FINISHED, summary=saved.summary if saved else done.summary)
        if saved and saved_result.only_rest_is_left(self._run_dir):
            self._trained = saved.resumes = True
            saved.write(self._run_dir)
        if done and done.outcome == PAUSED and done.step == run.pause_at:
            return outcome.at_rung(done)
        config = self._lease.until_answered(lambda: while_beating(lambda: self._config(run), self._keep_lease))
        self._lease.until_answered(lambda: self._lineage(run)).write(self._run_dir)
        return self._train(run, config, reports)

    def _with_result(self, verdict: Verdict) -> Verdict:
        """The verdict on an attempt that may have ended after its result was saved."""
        seen = self._reports.seen if self._reports else AttemptProgress()
        if not (self._trained or seen.has_result):
            return verdict
        run = self._lease.until_answered(self._load)
        return saved_result.kept(verdict, run, self._run_dir, seen.phase)

    def _train(self, run: Run, config: RunConfig, reports: Reports) -> Verdict:
        """Runs the training process to its end."""
        killed_before = processes.memory_kills()
        output = self._run_dir / LOG_FILE
        printed_before = output.stat().st_size if output.exists() else 0
        if not self._trained:
            if run.summary is not None:
                self._lease.until_answered(self._forget_result)
            self._files.outdate(self._keep_lease)
        self._keep_lease()  # on a busy machine each part of the start may take as long as a lease
        trainer = self._start(run, config)
        self._keep_lease()
        self._store_forecast()
        watch = Watchdog(trainer, reports.seen, self._graces, self._run_dir)
        with self._lease.guarded(trainer.kill):
            code = self._follow(trainer, watch, reports)
            self._disk.look_back()
            self._drain(reports)
        if self._lease.gave_up and not reports.seen.finished and not self._disk.full:
            reason = f"{self._lease.gave_up} {outcome.goes_on(reports.seen)}"
            return Verdict(Status.QUEUED, reason, exit_code=code)
        if trainer.lost and not reports.seen.finished:
            error = outcome.error_of(reports.seen, trainer.lost)
            resumes = outcome.goes_on(reports.seen)
            verdict = Verdict(Status.FAILED, trainer.lost, error, exit_code=code, retry=True, goes_on=resumes)
            return replace(verdict, machine=trainer.lost_host)
        ending = Ending(
            exit_code=code,
            asked=self._asked or self._stopped_outside(reports.seen),
            killed=trainer.killed,
            out_of_memory=killed_before is not None and (processes.memory_kills() or 0) > killed_before,
            full_disk=self._disk.full,
            read_only=self._disk.read_only,
            step_down=self._next_rung(reports.seen, config, run.devices),
        )
        verdict = replace(outcome.judge(reports.seen, ending), exit_code=code)
        if self._disk.full or self._disk.read_only:
            return verdict  # the log would only show that again
        return run_diagnosis.explained(verdict, reports.seen, run.config, run.stepped_down, output, printed_before)

    def _stopped_outside(self, seen: AttemptProgress) -> Request | None:
        return Request.REQUEUE if self._outside_stop and seen.finished and seen.finished.outcome == "stopped" else None

    def _next_rung(self, seen: AttemptProgress, config: RunConfig, leased: list[str]) -> Changes | None:
        """The settings of the next attempt, if this one ran out of memory."""
        if seen.out_of_memory is None:
            return None
        from training.forecast.step_down import next_rung_after  # 0.4 s to import, and few runs need it
        from worker.machine import devices

        kept = any(checkpoints.sealed(self._run_dir))
        return next_rung_after(seen.out_of_memory, config, devices.machine(leased), has_checkpoint=kept)

    def _load(self) -> Run:
        with database.read() as session:
            return runs.get(session=session, run_id=self._run_id)

    def _config(self, run: Run) -> RunConfig:
        """The run's configuration for the training process. Raises ConfigError if its data was deleted."""
        return resolve(stepped_down(run.asked, run.stepped_down | run.placed))

    def _lineage(self, run: Run) -> Lineage:
        with database.read() as session:
            return lineage_of(session=session, run=run)

    def _start(self, run: Run, config: RunConfig) -> TrainingProcess:
        """Starts the training process. Raises OSError if the disk is full, or the process cannot be started."""
        self._disk.begin()
        token_stores.make_room()
        write_whole(self._run_dir / CONFIG_FILE, config.model_dump_json(indent=2))
        launch = self._launch(config, self._run_dir, run.devices, os.cpu_count() or 1)
        variables = environment(launch, run.id, self._settings, run.pause_at) | allowed_rewards.variables(config)
        return self._start_process(launch.argv, self._run_dir, variables)

    def _forget_result(self) -> None:
        """The run trains again, since the files of a result that it had are lost."""
        with database.write() as session:
            runs.get(session=session, run_id=self._run_id).summary = None

    def _store_forecast(self) -> None:
        """Stores the memory forecast, to be compared with the measurement. Training has already started and does not wait."""
        from worker.forecasts import run_forecast
        from worker.machine import devices

        try:
            run = self._load()
            config = stepped_down(run.asked, run.stepped_down)
            forecast = run_forecast.recorded(settle(config), devices.machine())
            with database.write() as session:
                runs.get(session=session, run_id=self._run_id).forecast = forecast
        except Exception:
            log.exception("no forecast")  # the run continues

    def _follow(self, trainer: TrainingProcess, watch: Watchdog, reports: Reports) -> int:
        """Follows the training process to its end: stores reports, renews the lease, handles requests. Returns the exit code."""
        began = steady()
        while (code := trainer.exit_code()) is None:
            reports.read()
            self._keep_lease()
            self._lease.try_once(reports.store)
            if self._disk.full and not self._disk.has_room:
                trainer.kill("the disk was full.")  # saving now would take the space for the last log lines
            watch.check(self._asked or (Request.REQUEUE if self._disk.full else None))
            early = steady() - began < _EARLY_SECONDS and not reports.seen.step
            trainer.wait(_EARLY_LOOK_SECONDS if early else _LOOK_SECONDS)
        trainer.clear("its launcher had ended.")
        if not self._lease.certain and not self._disk.full:
            self._lease.until_answered(self._lease.renew, is_fenced=True)
        return code

    def _drain(self, reports: Reports) -> None:
        """Stores all remaining reports."""
        self._lease.until_answered(reports.store, is_fenced=True)
        while reports.read(to_end=True):
            self._lease.until_answered(reports.store, is_fenced=True)

    def _packed(self, verdict: Verdict) -> Verdict:
        """Packs the result of a finished or diverged run for download. If that fails, the run is finished all the same."""
        if verdict.summary is None or verdict.status is Status.QUEUED or not paths.saved_result(self._run_dir):
            return verdict
        undone = {name: why for name, why in verdict.summary.get(UNDONE, {}).items() if name != PACKING.phase}
        try:
            packing.pack_results(self._run_dir, self._keep_lease)
        except OSError as error:
            undone[PACKING.phase] = str(error.strerror or error)
            with contextlib.suppress(OSError):
                (self._run_dir / ARCHIVE_FILE).unlink()  # that of the result without what was done since
        summary = {name: value for name, value in verdict.summary.items() if name != UNDONE}
        return replace(verdict, summary=summary | ({UNDONE: undone} if undone else {}))

    def _close(self, verdict: Verdict) -> None:
        """Stores the verdict and frees the devices. Raises LeaseLost if another process holds the run."""
        log.info("attempt %d of run %s: %s. %s", self._attempt, self._run_id, verdict.status.value, verdict.reason)
        self._disk.end()
        self._files.finish(self._keep_lease)
        if not self._lease.until_answered(lambda: self._write_end(verdict), is_fenced=True):
            raise LeaseLost(f"Run {self._run_id} is past attempt {self._attempt}.")

    def _write_end(self, verdict: Verdict) -> bool:
        with database.write() as session:
            run = runs.get(session=session, run_id=self._run_id)
            if run.attempt != self._attempt:
                return False
            return closing.close(session=session, run=run, verdict=verdict, max_attempts=self._settings.max_attempts)

    def _keep_lease(self, *_: object) -> None:
        self._lease.try_once(self._beat)

    def _beat(self) -> None:
        run = self._lease.keep()
        self._asked = (run and run.request) or self._asked

    def _mark_starved(self) -> None:
        """If another process declared the attempt lost while this one was alive, it does not count as a failed attempt."""
        with contextlib.suppress(*UNREACHABLE), database.write() as session:
            claims.was_starved(session=session, run_id=self._run_id, attempt=self._attempt)

    def _notify_next(self) -> None:
        """Notifies the workers of the oldest queued run; they also check by themselves every few seconds."""
        try:
            with database.read() as session:
                next_runs = waiting.startable(session=session)
        except UNREACHABLE:
            return
        if next_runs:
            celery_app.notify(next_runs[0].id)


def main(arguments: list[str], *, launch: Launcher = launcher.launch, graces: Graces | None = None) -> int:
    """`python -m worker.supervision.supervisor RUN_ID ATTEMPT`, or `--standby` to read both from standard input."""
    if arguments == [holders.FLAG]:
        arguments = holders.assignment(get_settings().runs_dir)
        if not arguments:  # the worker ended without a run
            return 0
    redaction.start_logging()
    return Supervisor(arguments[0], int(arguments[1]), launch=launch, graces=graces).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
