"""The verdict on an attempt that ended after its result was saved whole, with what its run's folder says of the stages since."""

import contextlib
from dataclasses import replace
from pathlib import Path

from training.run_folder.events import FINISHED
from training.run_folder.stages import Saved
from worker.store.tables import Run
from worker.supervision import outcome
from worker.supervision.outcome import Verdict


def only_rest_is_left(run_dir: Path) -> bool:
    """True if the run in this folder has trained to its end and saved its result: its next attempt does not train.

    Of a diverged run, Resume trains on."""
    saved = Saved.read(run_dir)
    return saved is not None and saved.outcome == FINISHED


def kept(verdict: Verdict, run: Run, run_dir: Path, phase: str) -> Verdict:
    """The verdict with the result, if one is in the folder; the attempt ended in `phase`.

    Later attempts leave a phase out in which attempts end abnormally again and again.
    """
    saved = Saved.read(run_dir)
    if saved is None:
        return verdict
    if verdict.retry:
        saved.kills[phase] = saved.kills.get(phase, 0) + 1
        with contextlib.suppress(OSError):  # the disk is full
            saved.write(run_dir)
        verdict = replace(verdict, retry=saved.outcome == FINISHED)
    return outcome.with_result(verdict, saved, saved.undone(run.used, run_dir, verdict.reason))
