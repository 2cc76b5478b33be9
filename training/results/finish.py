"""After the last step: saves the result, and makes the run's summary."""

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
from training.files import sync, sync_tree
from training.models.lora_init import export_plain_lora
from training.ranks import sequence_parallel
from training.ranks.distributed import gathered, main_rank_works
from training.reports.report import Report, peak_bytes, used_bytes
from training.results.parity.reference import Reference, by_all_ranks, record
from training.run_folder.derived import remove_outdated
from training.run_folder.evaluated import final_loss
from training.run_folder.paths import result_dir
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
    trainer: ReportingTrainer, config: RunConfig, run_dir: Path, memory: dict[str, int], reference: Reference | None
) -> dict[str, Any]:
    """Saves the result, and what is needed to verify it. Returns the run's summary. Every rank calls it."""
    result = save_result(trainer, config, run_dir)
    if reference and trainer.context.report.rank == 0:
        if config.task.traits.generates:
            write_generation_config(result, config, reference.ends)
        reference.write(run_dir)
    # Counted before the model was wrapped, since FSDP hides the original parameters.
    parameters = trainer.context.plan["trainable_parameters"], trainer.context.plan["total_parameters"]
    return summarize(trainer, result, parameters, memory)


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
        "parity": None,
        **trainer.objective.marks(),
    }


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
    """What the trained model answers, to verify the saved result. Every rank calls it, before anything is saved.

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
