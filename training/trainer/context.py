"""The run that a trainer belongs to."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.config.run_config import RunConfig
from training.ranks.stopping import StopSignal
from training.reports.experiment_trackers import ExperimentTrackers
from training.reports.report import Report
from training.reports.step_position import StepTracker
from training.trainer.answering.sample import SampleAnswers


@dataclass(frozen=True)
class TrainerContext:
    """The run that a trainer belongs to: its folder, report, stop signal, configuration, plan, step tracker, experiment trackers,
    and the held-out rows that are answered at evaluations.

    `plan` holds the values of the `Planned` record that are known before the model is wrapped.
    """

    run_dir: Path
    report: Report
    stop: StopSignal
    config: RunConfig
    plan: dict[str, Any]
    tracker: StepTracker
    trackers: ExperimentTrackers
    answers: SampleAnswers
