"""The training program: `python -m training.ranks.launch --module training.train RUN_FOLDER`.

It trains with the settings in RUN_FOLDER/config.json, writes its records to RUN_FOLDER/events.jsonl, and resumes from the newest
complete checkpoint in the folder, or does what is left after the training (`Saved.resumes`). It does not use the queue or the
database.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.config.choices import Precision
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import EXPECTED_EXIT, ReviewRequested, StopRequested, UserError
from training.ranks.stopping import StopSignal, die_with_parent
from training.redaction import redact_output
from training.reports.report import Report
from training.rules import check
from training.run_folder import checkpoints
from training.run_folder.events import DIVERGED, FINISHED, PAUSED, REVIEW, Finished, Resumed
from training.run_folder.paths import CONFIG_FILE, checkpoint_step
from training.run_folder.stages import Saved
from training.unused_libraries import leave_out

if TYPE_CHECKING:
    from accelerate import PartialState

    from training.trainer.prepare import Data
    from training.trainer.reporting_trainer import ReportingTrainer


def main() -> None:
    """Runs one rank and ends its process: status 0 when finished or stopped, 1 after an error (which it reports), and EXPECTED_EXIT
    after one that a user can fix, without a traceback."""
    die_with_parent()
    redact_output()
    run_dir = Path(sys.argv[1]).resolve()
    rank, machine = int(os.environ.get("RANK", "0")), int(os.environ.get("GROUP_RANK", "0"))
    report, stop = Report(run_dir, rank, machine), StopSignal()
    try:
        stop.install()
        report.started(device=os.environ.get("CUDA_VISIBLE_DEVICES", "") or "cpu")
        report.enter("starting")
        config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
        leave_out(config)
        train(config, run_dir, report, stop)
        stop.run_ends()
        # A gloo thread that still runs at interpreter shutdown aborts the process, and with it the other ranks.
        leave(report)
    except (StopRequested, Exception) as error:
        stop.run_ends()
        if not (stop.ends_the_start or isinstance(error, StopRequested)):
            report.failed(error)
            if isinstance(error, UserError):
                print(f"Error: {error}", file=sys.stderr)
                sys.exit(EXPECTED_EXIT)
            raise
        outcome = REVIEW if isinstance(error, ReviewRequested) else "stopped"
        report.for_run(Finished(outcome=outcome, step=0, summary={}))
        leave(report)  # without cleanup, since other ranks may have exited already


def leave(report: Report) -> None:
    """Ends this rank with status 0, without interpreter shutdown. Others may still work."""
    report.left()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def train(config: RunConfig, run_dir: Path, report: Report, stop: StopSignal) -> None:
    """Joins the ranks and runs this one, within its memory limit."""
    # Heavy imports come after the first record, so that the page shows "starting" meanwhile.
    from training.ranks import distributed
    from training.ranks.node_check import check_nodes
    from training.reports import out_of_memory
    from training.reports.live_memory import limited_memory

    machine = distributed.local_machine()
    apply_rules(config, machine, report)
    saved = Saved.read(run_dir)
    if saved and saved.resumes:
        finish_alone(config, run_dir, report, stop, machine, saved)
        return
    state = distributed.start(config, machine, report)
    check_nodes(report, run_dir, state.device)
    with limited_memory(config.memory_limit, machine), out_of_memory.reporting_out_of_memory(report, config, machine):
        train_rank(config, run_dir, report, stop, machine, state)


def finish_alone(
    config: RunConfig, run_dir: Path, report: Report, stop: StopSignal, machine: Machine, saved: Saved
) -> None:
    """Does what an earlier attempt has left after its training: rank 0 as a program of one process, the others nothing."""
    if report.rank:
        return
    import torch

    from training.ranks.distributed import forget_ranks
    from training.results.finishing import Finishing

    forget_ranks()
    device = torch.device("cuda" if machine.kind == "cuda" else "cpu")
    Finishing(config, run_dir, report, stop, device, machine.precision_of(config.precision), saved).run()


def train_rank(
    config: RunConfig, run_dir: Path, report: Report, stop: StopSignal, machine: Machine, state: "PartialState"
) -> None:
    """Runs all phases of a run; every rank calls it."""
    from transformers import set_seed

    from training.ranks import distributed
    from training.results.finish import conclude, memory_of_training, reference_of
    from training.results.finishing import Finishing
    from training.trainer.divergence import step_back

    precision = machine.precision_of(config.precision)
    set_seed(config.seed)
    trainer, data = prepared(config, run_dir, report, stop, machine, precision)
    tokenizer, device = trainer.processing_class, trainer.args.device
    run_steps(trainer, run_dir, state, report, stop)
    if stop.agreed() or (trainer.paused and not stop.diverged):
        outcome = "stopped" if stop.agreed() else PAUSED
        report.for_run(Finished(outcome=outcome, step=trainer.state.global_step, summary={}))
        return

    outcome, facts = FINISHED, dict[str, Any]()
    report.enter("saving")
    if stop.diverged:
        outcome, facts = DIVERGED, {"diverged_at": trainer.state.global_step}
        facts |= {"changes": changes} if (changes := step_back(config)) else {}
        if changes or not trainer.load_best_finite():
            report.for_run(Finished(outcome=outcome, step=last_saved_step(run_dir), summary=facts))
            return
    memory = memory_of_training()
    reference = reference_of(trainer, config, data, tokenizer, precision, report)
    summary = conclude(trainer, config, run_dir, memory, reference)
    saved = Saved(outcome, summary | facts | {"classes": list(data.classes)})
    if report.rank == 0:
        saved.write(run_dir)
    del trainer
    distributed.destroy_process_group()
    if report.rank == 0:
        Finishing(config, run_dir, report, stop, device, precision, saved, tokenizer, data).run()


def prepared(
    config: RunConfig, run_dir: Path, report: Report, stop: StopSignal, machine: Machine, precision: Precision
) -> "tuple[ReportingTrainer, Data]":
    """Loads data, tokenizer and model. Returns the trainer, which alone refers to the model, and the data."""
    from training.models.loading import hidden_size_of, load_tokenizer, load_trainable
    from training.models.lora_init import initial_dir
    from training.trainer.arguments import training_arguments
    from training.trainer.data_notes import check_rows
    from training.trainer.make_trainer import make_trainer
    from training.trainer.prepare import prepare_data

    def enter(phase: str) -> None:
        stop.check()
        report.enter(phase)

    enter("loading data")
    tokenizer = load_tokenizer(config)
    data = prepare_data(config, run_dir, tokenizer, report)
    if report.rank == 0:
        check_rows(config, tokenizer, report)

    enter("loading model")
    # Before the model is loaded: with ZeRO-3 the arguments decide how its weights are sharded.
    arguments = training_arguments(
        config,
        run_dir,
        machine,
        precision,
        hidden_size_of(config.model),
        evaluates=data.held_out is not None,
        max_steps=data.max_steps,
    )
    model = load_trainable(config, precision, tokenizer, data.classes, initial_dir(run_dir), report.note)

    enter("preparing")
    trainer = make_trainer(config, run_dir, report, stop, model, arguments, tokenizer, data, precision)
    return trainer, data


def run_steps(
    trainer: "ReportingTrainer", run_dir: Path, state: "PartialState", report: Report, stop: StopSignal
) -> None:
    """Trains to the end or a stop, from the newest complete checkpoint if there is one, and evaluates at the end."""
    from training.trainer.prepare import prepare_resume

    checkpoint, rejected = prepare_resume(trainer.context.config, run_dir, state)
    if checkpoint:
        report.for_run(Resumed(step=int(checkpoint.name.split("-")[1]), path=checkpoint.name, rejected=rejected))
    elif rejected:
        report.warn(f"No checkpoint is complete, so training restarts from step 0: {'; '.join(rejected)}")
    with trainer.context.trackers.closed_at_end(hurried=lambda: stop.requested), trainer.beside:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
        if (
            trainer.eval_dataset is not None
            and not stop.agreed()
            and trainer.last_evaluation.step != trainer.state.global_step
        ):
            trainer.evaluate()
    if not stop.agreed() and not trainer.has_diverged() and not trainer.paused:
        trainer.load_best_weights()


def last_saved_step(run_dir: Path) -> int:
    """The step of the newest checkpoint; 0 without one."""
    return max((checkpoint_step(path) or 0 for path in checkpoints.sealed(run_dir)), default=0)


def apply_rules(config: RunConfig, machine: Machine, report: Report) -> None:
    """Checks the settings against each other and this machine, and reports warnings.

    Raises:
        UserError: settings conflict.
    """
    for conflict in check(config, machine):
        if conflict.blocking:
            name = conflict.settings[0]
            raise UserError(name, getattr(config, name), conflict.reason, conflict.fix)
        report.note(f"{conflict.reason} {conflict.fix}")


if __name__ == "__main__":
    main()
