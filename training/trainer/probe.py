"""The probe: two optimizer steps on the largest batches of the run, on every rank, before training begins.

A run that would run out of memory hours later does so at once. Adam allocates its state in the first step, so the first one is on
the largest batch of the run's first step, and the second one, with the state, on that of all later ones. The weights do not
change, since the learning rate is 0 (and without DeepSpeed the gradients are 0 too); so the probe needs no copy of them, however
they are sharded. It restores the optimizer's state, learning rates, schedule, loss scale and random states.
"""

import copy
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from training.batches.views import TargetView, View
from training.errors import UserError
from training.reports.report import Report, peak_bytes
from training.reports.step_position import StepTracker
from training.run_folder.events import Metrics
from training.tokens.order import worst_batches

_ENGINE_COUNTERS = ("micro_steps", "global_steps", "global_samples", "skipped_steps")  # of DeepSpeed
_GIB = 2**30


def probe(trainer: Any, tracker: StepTracker) -> None:
    """Runs the probe and reports its peak memory. Every rank calls it, after its model is placed and before the first step.

    Raises:
        torch.OutOfMemoryError: the largest batch does not fit; `tracker` knows its rows.
        UserError: the gradient of the largest batch is not finite.
    """
    view = tracker.rows
    if view is None or trainer.optimizer.state:
        return
    steps = largest_batches(trainer, tracker, view)
    with _state_restored(trainer):
        for batches in steps:
            _step(trainer, tracker, view, batches)
    trainer.model.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    _report_peak(trainer.context.report, view, [rows for batches in steps for rows in batches])


def largest_batches(trainer: Any, tracker: StepTracker, view: View) -> list[list[list[int]]]:
    """Returns the rows of the micro batches of each of the probe's steps: the largest of the run's first step, then of later ones,
    and of each the largest of first micro steps, then of others, in which there are gradients. An encoder-decoder has steps with
    the longest sources and with the longest targets."""
    args = trainer.args
    sides = [view.first.lengths, view.second.lengths] if isinstance(view, TargetView) else [view.lengths]
    micro_steps = (True, False) if args.gradient_accumulation_steps > 1 else (True,)
    steps = [
        [
            batch.rows
            for first_micro in micro_steps
            for batch in worst_batches(
                lengths,
                micro_batch=args.per_device_train_batch_size,
                accumulation=args.gradient_accumulation_steps,
                world=args.world_size,
                seed=args.seed,
                epochs=args.num_train_epochs,
                max_steps=trainer.state.max_steps,
                count=1,
                order=tracker.order,
                pads=not getattr(trainer.data_collator, "flat", False),
                first=(first_step, first_micro),
                iterations=trainer.context.config.iterations,
            )
        ]
        for first_step in (True, False)
        for lengths in sides
    ]
    return [batches for batches in steps if batches]


def _step(trainer: Any, tracker: StepTracker, view: View, batches: list[list[int]]) -> None:
    """Takes one optimizer step on the rows of these micro batches."""
    count = len(batches)
    for micro_step, rows in enumerate(batches):
        last = micro_step == count - 1
        inputs = trainer.data_collator([view[row] for row in rows])
        tracker.probe(inputs, rows)
        trainer.current_gradient_accumulation_steps = count
        trainer.accelerator.gradient_state._set_sync_gradients(last)
        for group in trainer.optimizer.param_groups:  # before backward, in which DeepSpeed takes its step
            _set(group, {"lr": 0.0})
        # DeepSpeed reads sync_gradients instead; FSDP reduces in each micro step.
        skips_sync = not last and not trainer.is_deepspeed_enabled and not trainer.is_fsdp_enabled
        with trainer.accelerator.no_sync(trainer.model_wrapped) if skips_sync else nullcontext():
            trainer.training_pass(trainer.model_wrapped, inputs)
    if trainer.is_deepspeed_enabled:
        _check_gradient(trainer)
    else:
        for parameter in trainer.model_wrapped.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
    if trainer.args.max_grad_norm > 0:
        trainer._clip_grad_norm(trainer.model_wrapped)
    trainer.optimizer.step()
    trainer.model_wrapped.zero_grad()


def _check_gradient(trainer: Any) -> None:
    """Checks that the gradient is finite. If not, it makes the weights NaN even at learning rate 0; fp16 skips the step."""
    norm = trainer.accelerator.deepspeed_engine_wrapped.get_global_grad_norm()
    if norm is not None and not math.isfinite(norm) and not trainer.model_wrapped.fp16_enabled():
        message = "found that the gradient of the largest batch is not finite: the run would diverge."
        fix = "Set precision to fp32, or check the rows of that batch; set probe to off to start anyway."
        raise UserError("probe", "on", message, fix)


@contextmanager
def _state_restored(trainer: Any) -> Iterator[None]:
    """Restores at the end what the probe's steps change. The optimizer had no state before."""
    groups = [
        {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        for group in trainer.optimizer.param_groups
    ]
    schedule = copy.deepcopy(trainer.lr_scheduler.state_dict())
    scaler = trainer.accelerator.scaler
    scale = scaler.state_dict() if scaler else None
    engine = trainer.model_wrapped if trainer.is_deepspeed_enabled else None
    counters = {name: getattr(engine, name) for name in _ENGINE_COUNTERS} if engine else {}
    loss_scaler = getattr(getattr(engine, "optimizer", None), "loss_scaler", None)
    loss_scale = dict(vars(loss_scaler)) if loss_scaler else {}
    with _random_states_restored():
        yield
    trainer.optimizer.state.clear()
    if engine:
        _unlink_state(trainer)
    for group, values in zip(trainer.optimizer.param_groups, groups, strict=True):
        _set(group, values)
    trainer.lr_scheduler.load_state_dict(schedule)
    if scaler:
        scaler.load_state_dict(scale)
    for name, value in counters.items():
        setattr(engine, name, value)
    if loss_scaler:
        vars(loss_scaler).update(loss_scale)
    trainer.objective.forget()


def _unlink_state(trainer: Any) -> None:
    """Lets DeepSpeed link each parameter with the optimizer's next state: ZeRO-1 and ZeRO-2 keep the first one else."""
    for parameter in trainer.model.parameters():
        if mapping := getattr(parameter, "_hp_mapping", None):
            mapping.optim_fragment = None
    if hasattr(trainer.model_wrapped.optimizer, "_hp_optimizer_states_linked"):
        trainer.model_wrapped.optimizer._hp_optimizer_states_linked = False


def _set(group: dict[str, Any], values: dict[str, Any]) -> None:
    """Sets values of an optimizer's group; a tensor stays the same object."""
    for name, value in values.items():
        if isinstance(group[name], torch.Tensor):
            group[name].copy_(torch.as_tensor(value))
        else:
            group[name] = value


@contextmanager
def _random_states_restored() -> Iterator[None]:
    """Restores the random states of Python, numpy and torch, on CPU and on this rank's GPU."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _report_peak(report: Report, view: View, batches: list[list[int]]) -> None:
    peak = peak_bytes()
    report.for_rank(Metrics(step=0, rank=report.rank, values={"probe_peak": peak}))
    largest = max(batches, key=lambda rows: int(view.lengths[rows].max()))
    size = f"{len(largest)} rows of up to {int(view.lengths[largest].max()):,} tokens"
    message = f"The largest batch of the run fits ({size}): peak memory {peak / _GIB:.2f} GiB on rank {report.rank}."
    report.note(message)
