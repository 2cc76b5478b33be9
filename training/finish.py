"""After the last step: the run's summary, and the held-out rows answered before and after."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from transformers import PreTrainedTokenizerBase

from training.answers import compare, questions, write_records
from training.card import write_card
from training.config import Precision, RunConfig
from training.distributed import local_machine
from training.events import Note
from training.export import save_result, weights_bytes
from training.failure import StopRequested
from training.hub_upload import push, token
from training.lineage import Lineage
from training.merging import merge
from training.model import DTYPES
from training.optimizers import optimizer_class
from training.prepare import Data
from training.report import Report, peak_bytes, used_bytes
from training.reporting import Reporting
from training.stopping import StopSignal


def conclude(trainer: Reporting, config: RunConfig, run_dir: Path) -> tuple[Path, dict[str, Any]]:
    """Saves the result; its folder and the run's facts. Every rank calls it."""
    after = used_bytes()
    memory = {"after_bytes": after, "peak_bytes": max(peak_bytes(), after)}
    if torch.cuda.is_available():
        memory["reserved_bytes"] = torch.cuda.max_memory_reserved()
    result = save_result(trainer, config, run_dir)
    # As counted before the model was wrapped: FSDP hides what its parameters were made of.
    parameters = trainer.plan["trainable_parameters"], trainer.plan["total_parameters"]
    return result, summarize(trainer, result, parameters, memory)


def summarize(trainer: Reporting, result: Path, parameters: tuple[int, int], memory: dict[str, int]) -> dict[str, Any]:
    """The facts of a finished run; a collective, since each rank tells its own memory."""
    trainable, total = parameters
    ranks = _gather({"before_bytes": trainer.memory_before} | memory)
    return {
        "trainable_parameters": trainable,
        "total_parameters": total,
        "trainable_percent": 100 * trainable / total,
        "adapter_bytes": weights_bytes(result),
        "memory": {name: [rank[name] for rank in ranks] for name in ranks[0]},
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
    """Answers the held-out rows asked for, and adds to `summary` how well. Rank 0 alone."""

    def progress(done: int, total: int) -> None:
        if stop.requested:
            raise StopRequested
        report.progress(done, total)

    asked = questions(data.held_out_examples(), config, tokenizer) if config.answer_rows else []
    if asked:
        report.enter("answering")
        summary["answers"], rows = compare(asked, config, result, tokenizer, DTYPES[precision], device, progress)
        write_records(rows, run_dir / "answers.jsonl")


def hand_over(
    config: RunConfig,
    run_dir: Path,
    result: Path,
    tokenizer: PreTrainedTokenizerBase,
    report: Report,
    summary: dict[str, Any],
) -> None:
    """Writes the result's card, merges and pushes as asked. The result is there: what fails here fails no run. Rank 0 alone."""
    lineage, machine = Lineage.read(run_dir), local_machine()
    run = lineage.run or "RUN"
    write_card(result, config, summary, lineage, machine)
    if config.merge_adapter and config.method.adapts:
        report.enter("merging")
        with _told(report, f"The merged model was not written. `lathe export {run} --merged --to FOLDER` tries again."):
            merged = merge(config, run_dir, tokenizer, summary["classes"])
            write_card(merged, config, summary, lineage, machine)
    if config.push_to_hub:
        report.enter("pushing")
        with _told(report, f"The result was not pushed. `lathe push {run} {config.push_to_hub}` tries again."):
            url = push(result, config.push_to_hub, private=config.push_private, secret=token())
            report.once(Note(message=f"Pushed to {url}."))


@contextmanager
def _told(report: Report, consequence: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        report.once(Note(message=f"{consequence} {error} {getattr(error, 'fix', '')}".strip(), level="warning"))


def _gather(values: dict[str, int]) -> list[dict[str, int]]:
    if not dist.is_initialized():
        return [values]
    everyone: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, values)
    return everyone


def _last_logged(trainer: Reporting) -> float | None:
    """The last training loss of an earlier attempt, where this one had no step left to take."""
    return next((entry["loss"] for entry in reversed(trainer.state.log_history) if "loss" in entry), None)
