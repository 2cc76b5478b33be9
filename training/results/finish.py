"""After the last step: saves the result, makes the run's summary, answers held-out rows, merges and pushes."""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase

from training.checkpointing.contents import refuse
from training.checkpointing.weights import check_result
from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.errors import StopRequested
from training.files import sync, sync_tree
from training.models.loading import DTYPES
from training.models.lora_init import export_plain_lora
from training.ranks import sequence_parallel
from training.ranks.distributed import gathered, local_machine, main_rank_works
from training.ranks.stopping import StopSignal
from training.reports.report import Report, peak_bytes, used_bytes
from training.results.answers import Compared, compare
from training.results.merging import merge
from training.results.parity.reference import Reference, by_all_ranks, fits_here, record
from training.results.parity.verify import verified
from training.run_folder.derived import remove_outdated
from training.run_folder.evaluated import final_loss
from training.run_folder.model_card import environment_token, upload, write_card
from training.run_folder.paths import ANSWERS_FILE, result_dir
from training.run_folder.record import Lineage, write_record
from training.trainer.answering import questions
from training.trainer.optimizers import optimizer_class
from training.trainer.prepare import Data
from training.trainer.reporting_trainer import ReportingTrainer


def memory_of_training() -> dict[str, int]:
    """This rank's memory now, and its peak."""
    after = used_bytes()
    memory = {"after_bytes": after, "peak_bytes": max(peak_bytes(), after)}
    if torch.cuda.is_available():
        memory["reserved_bytes"] = torch.cuda.max_memory_reserved()
    return memory


def conclude(
    trainer: ReportingTrainer, config: RunConfig, run_dir: Path, memory: dict[str, int]
) -> tuple[Path, dict[str, Any]]:
    """Saves the result. Returns its folder and the run's summary. Every rank calls it."""
    result = save_result(trainer, config, run_dir)
    # Counted before the model was wrapped, since FSDP hides the original parameters.
    parameters = trainer.context.plan["trainable_parameters"], trainer.context.plan["total_parameters"]
    return result, summarize(trainer, result, parameters, memory)


def summarize(
    trainer: ReportingTrainer, result: Path, parameters: tuple[int, int], memory: dict[str, int]
) -> dict[str, Any]:
    """Returns the summary of a finished run. A collective, since each rank adds its memory."""
    trainable, total = parameters
    ranks = gathered({"before_bytes": trainer.memory_before} | memory)
    energy = [rank["joules"] for rank in gathered({"joules": trainer.context.report.joules()})]
    return {
        "trainable_parameters": trainable,
        "total_parameters": total,
        "trainable_percent": 100 * trainable / total,
        "adapter_bytes": sum(file.stat().st_size for file in result.glob("*.safetensors")),
        "memory": {name: [rank[name] for rank in ranks] for name in ranks[0]},
        "energy_joules": None if None in energy else sum(energy),
        **trainer.throughput.overall(),
        "train_seconds": trainer.throughput.seconds,
        "final_loss": trainer.last_loss if trainer.last_loss is not None else _last_logged(trainer),
        "eval_loss": trainer.last_evaluation.loss,
        "eval_perplexity": trainer.last_evaluation.perplexity,
        "steps": trainer.state.global_step,
        "strategy": trainer.strategy,
        "optimizer": optimizer_class(trainer.optimizer),
        "answers": None,
    }


def answer_held_out(
    config: RunConfig,
    run_dir: Path,
    result: Path,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    device: torch.device,
    precision: Precision,
    report: Report,
    stop: StopSignal,
    summary: dict[str, Any],
) -> None:
    """Answers `answer_rows` held-out rows and adds the scores to `summary`. Only rank 0 calls it."""
    shown = 0

    def progress(done: int, total: int) -> None:
        nonlocal shown
        if stop.requested:
            raise StopRequested
        if done > shown:  # none are while vLLM loads
            shown = done
            report.progress(done, total)

    answered = ((number, example) for number, example in data.held_out_examples() if example.answered)
    selected = questions(answered, config, tokenizer, config.answer_rows) if config.answer_rows else []
    if selected:
        report.enter("answering")
        item = Compared(selected, config, result, tokenizer, DTYPES[precision])
        summary["answers"], rows = compare(item, device, progress, report.warn)
        lines = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
        (run_dir / ANSWERS_FILE).write_text("".join(lines), encoding="utf-8")


def publish_result(
    config: RunConfig,
    run_dir: Path,
    result: Path,
    tokenizer: PreTrainedTokenizerBase,
    report: Report,
    summary: dict[str, Any],
    reference: Reference | None,
) -> None:
    """Merges if configured, verifies what is saved, writes the cards, and pushes. Only rank 0 calls it.

    If merging or pushing fails, the run still succeeds: its result is already saved.
    """
    lineage, machine = Lineage.read(run_dir), local_machine()
    run = lineage.run or "RUN"
    folders = [result]
    if reference and config.task.generates:
        write_generation_config(result, config, reference.ends)
    if config.merge_adapter and config.method.adapts:
        report.enter("merging")
        command = f"lathe export {run} --merged --to FOLDER"
        with _note_on_failure(report, f"The merged model was not written. To try again, run `{command}`."):
            folders.append(merge(config, run_dir, tokenizer, summary["classes"]))
    summary["parity"] = _parity(config, run_dir, reference, report, lineage, summary["total_parameters"])
    for folder in folders:
        write_card(folder, config, summary, lineage, machine)
        write_record(folder, config, summary, lineage, machine)
    if config.push_to_hub:
        report.enter("pushing")
        command = f"lathe push {run} {config.push_to_hub}"
        with _note_on_failure(report, f"The result was not pushed. To try again, run `{command}`."):
            url = upload(result, config.push_to_hub, private=config.push_private, secret=environment_token())
            report.note(f"Pushed to {url}.")


def write_generation_config(result: Path, config: RunConfig, ends: Sequence[int]) -> None:
    """Writes generation_config.json beside the weights: answers end where the trained model ends them.

    PEFT saves none, and a base model's own often lacks the token that ends a turn of a chat.
    """
    try:
        generation = GenerationConfig.from_pretrained(config.model, revision=config.revision or "main")
    except (OSError, ValueError):  # the base model has none
        generation = GenerationConfig()
    generation.eos_token_id = list(ends) or None
    generation.save_pretrained(result)


def reference_of(
    trainer: ReportingTrainer,
    config: RunConfig,
    data: Data,
    tokenizer: PreTrainedTokenizerBase,
    precision: Precision,
    report: Report,
) -> Reference | None:
    """What the trained model answers, for `publish_result`. Every rank calls it, before anything is saved.

    Raises:
        OutOfMemoryError: on a rank that the others would wait for.
    """
    sequence_parallel.end(config)
    together = by_all_ranks(config)
    if report.rank and not together:
        return None
    fatal = torch.OutOfMemoryError if together else ()
    with _note_on_failure(report, "The saved result cannot be compared with the trained model.", unless=fatal):
        return record(trainer, config, data, tokenizer, precision)
    return None


def _parity(
    config: RunConfig, run_dir: Path, reference: Reference | None, report: Report, lineage: Lineage, parameters: int
) -> dict[str, Any] | None:
    """The verdict on the forms that are saved now; None where it is left to `lathe verify`."""
    if reference is None:
        return None
    report.enter("verifying")
    with _note_on_failure(report, "The saved result was not verified."):
        reference.write(run_dir)
        if not by_all_ranks(config) or fits_here(parameters):
            return verified(config, run_dir, reference)
        message = "The model is too large for the memory of one process, so the saved result was not verified."
        report.note(f"{message} Run `lathe verify {lineage.run or 'RUN'}` where it fits.")
    return None


@contextmanager
def _note_on_failure(report: Report, consequence: str, unless: type[Exception] | tuple[()] = ()) -> Iterator[None]:
    try:
        yield
    except unless:
        raise
    except Exception as error:
        report.warn(f"{consequence} {error} {getattr(error, 'fix', '')}".strip())


def _last_logged(trainer: ReportingTrainer) -> float | None:
    """Returns the last training loss of an earlier attempt, for an attempt that took no step."""
    return next((final_loss(entry) for entry in reversed(trainer.state.log_history) if "loss" in entry), None)


def save_result(trainer: ReportingTrainer, config: RunConfig, run_dir: Path) -> Path:
    """Saves the trained weights and the tokenizer atomically. Every rank calls it.

    Raises:
        UserError: what is trained or what is written is not complete and finite. An earlier result is kept.
        OSError: the disk is full.
    """
    target = result_dir(run_dir, adapts=config.method.adapts)
    partial = target.with_suffix(".partial")
    digest = trainer.prove(target.name)
    if digest and (broken := digest.weights_not_finite):
        refuse(target.name, f"has {len(broken)} parameters with NaN or infinity, such as {broken[0]}.")
    if trainer.is_fsdp_enabled:  # checkpoints are sharded, the result is not
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    with main_rank_works("result") as writes:  # hundreds of gigabytes take longer than a collective may
        trainer.save_model(str(partial))  # gathers the shards of ZeRO-3 and FSDP; only rank 0 writes
        if writes:
            shutil.rmtree(partial / "ref", ignore_errors=True)  # trl's reference adapter
            (partial / "training_args.bin").unlink(missing_ok=True)  # an unused pickle
            check_result(partial, trainer.accelerator.unwrap_model(trainer.model))
            export_plain_lora(partial, run_dir)
            remove_outdated(run_dir)  # what `lathe verify` made of the earlier result since this attempt began
            sync_tree(partial)  # before the rename: if the power fails, the result is complete or absent
            sync(partial)
            shutil.rmtree(target, ignore_errors=True)
            partial.rename(target)
            sync(run_dir)
    return target
