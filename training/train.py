"""The training program: `python -m accelerate.commands.launch --module training.train RUN_FOLDER`.

It obeys RUN_FOLDER/config.json, says what it does in RUN_FOLDER/events.jsonl, and goes on from the newest whole checkpoint
it finds there. It knows neither queue nor database.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from training.config import RunConfig
from training.events import Finished, Note, Resumed
from training.failure import StopRequested, UserError
from training.report import Report
from training.rules import Machine, check
from training.stopping import StopSignal, die_with_parent

if TYPE_CHECKING:
    from accelerate import PartialState

    from training.reporting import Reporting


def main() -> None:
    """Runs one rank and ends its process: 0 when finished or stopped as asked, 1 after an error (which is in the report)."""
    die_with_parent()
    run_dir = Path(sys.argv[1]).resolve()
    report, stop = Report(run_dir, rank=int(os.environ.get("RANK", "0"))), StopSignal()
    try:
        stop.install()
        report.started(device=os.environ.get("CUDA_VISIBLE_DEVICES", "") or "cpu")
        report.enter("starting")
        config = RunConfig.model_validate_json((run_dir / "config.json").read_text(encoding="utf-8"))
        train(config, run_dir, report, stop)
        # A thread of gloo's that still lives when the interpreter is taken apart aborts the process, and with it the other ranks.
        end_at_once()
    except StopRequested:
        report.once(Finished(outcome="stopped", step=0, summary={}))
        end_at_once()  # other ranks may be gone already; nothing is left to put in order
    except Exception as error:
        report.failed(error)
        raise


def end_at_once() -> None:
    """Ends this process as one that did well; all that it has to say is said."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def train(config: RunConfig, run_dir: Path, report: Report, stop: StopSignal) -> None:
    """Joins the ranks and runs on this one, within its memory limit."""
    # Heavy imports wait until the first record is written, so that the page says "starting" meanwhile.
    from training import distributed, out_of_memory
    from training.memory_limit import limited_memory

    machine = distributed.local_machine()
    heed_rules(config, machine, report)
    state = distributed.start(config, machine, report)
    with limited_memory(config.memory_limit, machine), out_of_memory.told(report, config, run_dir, machine):
        train_rank(config, run_dir, report, stop, machine, state)


def train_rank(
    config: RunConfig, run_dir: Path, report: Report, stop: StopSignal, machine: Machine, state: "PartialState"
) -> None:
    """The story of a run, the same on every rank."""
    from transformers import set_seed

    from training import distributed
    from training.arguments import training_arguments
    from training.finish import answer_held_out, conclude, hand_over
    from training.lora_init import initial_dir
    from training.model import hidden_size_of, load_tokenizer, load_trainable
    from training.objectives import objective
    from training.prepare import prepare_data
    from training.trainer import make_trainer

    precision = machine.best_precision if config.precision == "auto" else config.precision
    set_seed(config.seed)

    report.enter("loading data")
    tokenizer = load_tokenizer(config)
    data = prepare_data(config, run_dir, tokenizer, report)

    report.enter("loading model")
    # Before the model: with ZeRO-3 the arguments decide how its weights are placed while they are read.
    aim = objective(config)
    arguments = training_arguments(
        config,
        run_dir,
        machine,
        precision,
        hidden_size_of(config.model),
        aim,
        evaluates=data.held_out is not None,
        max_steps=data.max_steps,
    )
    model = load_trainable(config, precision, tokenizer, data.classes, initial_dir(run_dir))

    report.enter("preparing")
    trainer = make_trainer(config, aim, run_dir, report, stop, model, arguments, tokenizer, data, precision)
    run_steps(trainer, run_dir, state, report, stop)
    if stop.agreed():
        report.once(Finished(outcome="stopped", step=trainer.state.global_step, summary={}))
        return

    report.enter("saving")
    result, summary = conclude(trainer, config, run_dir)
    summary["classes"] = list(data.classes)
    del trainer, model
    distributed.leave()
    if report.rank == 0:
        answer_held_out(config, run_dir, result, tokenizer, data, arguments.device, precision, report, stop, summary)
        hand_over(config, run_dir, result, tokenizer, report, summary)
        report.once(Finished(outcome="finished", step=summary["steps"], summary=summary))


def run_steps(trainer: "Reporting", run_dir: Path, state: "PartialState", report: Report, stop: StopSignal) -> None:
    """Trains to the end or to a stop, from the newest whole checkpoint where there is one, and evaluates at the end."""
    from training.prepare import prepare_resume

    checkpoint, rejected = prepare_resume(run_dir, state)
    if checkpoint:
        report.once(Resumed(step=int(checkpoint.name.split("-")[1]), path=checkpoint.name, rejected=rejected))
    elif rejected:
        message = f"No checkpoint is whole, so training starts again: {'; '.join(rejected)}"
        report.once(Note(message=message, level="warning"))
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    if (
        trainer.eval_dataset is not None
        and not stop.agreed()
        and trainer.last_evaluation.step != trainer.state.global_step
    ):
        trainer.evaluate()
    if not stop.agreed():
        trainer.go_back_to_best()


def heed_rules(config: RunConfig, machine: Machine, report: Report) -> None:
    """Raises UserError for the first pair of settings that cannot go together on this machine; says which should not."""
    for conflict in check(config, machine):
        if conflict.blocking:
            name = conflict.settings[0]
            raise UserError(name, getattr(config, name), conflict.reason, conflict.fix)
        report.once(Note(message=f"{conflict.reason} {conflict.fix}"))


if __name__ == "__main__":
    main()
