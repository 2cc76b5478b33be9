"""The trainer of a run, with the objective of its task."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from peft import PeftModel
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from training.batches.layout import base_of, choose_layout, dataset
from training.batches.sets import TokenDataset, sets_of
from training.batches.streaming import Stream
from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.models.adapters import targeted_modules, untrained_head
from training.models.attention import attend_without_groups, has_flash_kernels
from training.models.freezing import modules_without_text
from training.models.loading import load_model, parameter_counts, weights_dtype
from training.models.placement import divide
from training.ranks.sequence_parallel import prepare_attention
from training.ranks.stopping import StopSignal
from training.reports.experiment_trackers import ExperimentTrackers
from training.reports.report import Report
from training.reports.step_position import StepTracker
from training.tokens.order import Shuffled
from training.trainer.answering import SampleAnswers
from training.trainer.checkpointing_trainer import TrainerContext
from training.trainer.objectives import objective_of
from training.trainer.prepare import Data
from training.trainer.reporting_trainer import ReportingTrainer
from training.trainer.step_callback import add_callbacks


def make_trainer(
    config: RunConfig,
    run_dir: Path,
    report: Report,
    stop: StopSignal,
    model: PreTrainedModel | PeftModel,
    arguments: TrainingArguments,
    tokenizer: PreTrainedTokenizerBase,
    data: Data,
    precision: Precision,
) -> ReportingTrainer:
    """Makes the trainer of a run from its prepared parts.

    Raises:
        UserError: as `prepare_attention` and `choose_layout`.
    """
    prepare_attention(model, config)
    divide(arguments, model)
    if unused := modules_without_text(base_of(model)):
        report.note(f"Multimodal model: modules that process no text are frozen ({', '.join(unused)}).")
    if sentence := untrained_head(model):
        report.warn(sentence)
    held_out_sets = sets_of(data.held_out, data.held_out_files) if data.held_out else None
    held_out: Any = TokenDataset(data.held_out, held_out_sets) if data.held_out and held_out_sets else None
    of_task = objective_of(config)
    plan, collator = _plan(model, data, precision), of_task.collator(config, tokenizer.pad_token_id)
    if config.task.traits.is_language_modeling and config.sequence_parallel_size == 1:  # ranks share only padded rows
        layout = choose_layout(config, model, tokenizer.pad_token_id)
        plan |= {"packing": layout.packing.value, "attention": layout.attention}
        collator = layout.collator
        report.note(layout.description)
    rows = dataset(config, data.train, data.files)
    plan |= {"sets": _training_sets(rows, data)}
    if held_out_sets and held_out_sets.several:
        counts = zip(held_out_sets.names, held_out_sets.counts, strict=True)
        plan["eval_sets"] = [{"name": name, "rows": count} for name, count in counts]
    held_out_rows = data.held_out, data.held_out_files
    tracker = StepTracker(config, (data.train, data.files), held_out_rows, getattr(rows, "order", None), held_out_sets)
    trackers = ExperimentTrackers(config, run_dir, report)
    answers = SampleAnswers(config, data.held_out_examples(), tokenizer, report.warn)
    beside = _beside_the_model(config, data, tokenizer, precision, arguments.device, run_dir, report)
    trainer = ReportingTrainer(
        objective=of_task(config, model, tokenizer=tokenizer, report=report, **beside),
        context=TrainerContext(run_dir, report, stop, config, plan, tracker, trackers, answers),
        model=model,
        args=arguments,
        processing_class=tokenizer,
        data_collator=collator,
        train_dataset=rows,
        eval_dataset=held_out,
    )
    add_callbacks(trainer)
    return trainer


def _beside_the_model(
    config: RunConfig,
    data: Data,
    tokenizer: PreTrainedTokenizerBase,
    precision: Precision,
    device: torch.device,
    run_dir: Path,
    report: Report,
) -> dict[str, Any]:
    """What the objective takes besides the model: a reference, the scorer of samples and its models, or a teacher."""
    beside: dict[str, Any] = {}
    if config.loads_reference:
        # With an adapter, the reference is the model with the adapter disabled. Autocast would keep 16-bit copies of weights
        # that require gradients until the end of the reference's forward pass.
        loaded = load_model(config, weights_dtype(config, precision), len(tokenizer))
        if not has_flash_kernels(precision):
            attend_without_groups(loaded, config)
        beside["reference"] = loaded.requires_grad_(False)
    if not config.task.traits.samples:
        return beside
    from training.trainer.questions import Questions

    questions = Questions(config, data, tokenizer)
    if config.task.traits.rewards_samples:
        from training.models.reward_model import load_scorers
        from training.rewards.rewards import rewards_of
        from training.trainer.scorer import Scorer

        models = load_scorers(rewards_of(config), config, precision, device, config.micro_batch_size)
        beside["scorer"] = Scorer(config, questions, run_dir, report, models)
    else:
        from training.models.teacher import load_teacher

        beside |= {"teacher": load_teacher(config, precision, tokenizer, device), "questions": questions}
    return beside


def _plan(model: torch.nn.Module, data: Data, precision: Precision) -> dict[str, Any]:
    """Returns the values of the `Planned` record that are known before the model is wrapped."""
    trainable, total = parameter_counts(model)
    return {
        "train_rows": data.train.num_rows,
        "eval_rows": data.held_out.num_rows if data.held_out else 0,
        "skipped_rows": data.skipped_rows,
        "truncated_rows": data.truncated_rows,
        "precision": precision.value,
        "trainable_parameters": trainable,
        "total_parameters": total,
        "target_modules": targeted_modules(model),
    }


def _training_sets(rows: Any, data: Data) -> list[dict[str, Any]]:
    """Returns several training data sets: name, rows, and the rows and tokens of each in the first epoch."""
    if not isinstance(rows, TokenDataset) or not rows.sets.several or isinstance(data.train, Stream):
        return []
    order = rows.order or Shuffled(len(rows), 0)
    units = order.epoch(0)
    epoch = units if isinstance(units, np.ndarray) else np.concatenate(units)
    sets = np.searchsorted(rows.sets.ends, epoch, side="right")
    count = len(rows.sets.names)
    epoch_rows = np.bincount(sets, minlength=count)
    tokens = np.bincount(sets, data.train.lengths[epoch], minlength=count)
    return [
        {"name": name, "rows": own, "epoch_rows": int(taken), "epoch_tokens": int(total)}
        for name, own, taken, total in zip(rows.sets.names, rows.sets.counts, epoch_rows, tokens, strict=True)
    ]
