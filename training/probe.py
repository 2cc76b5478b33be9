"""Two optimizer steps on the largest batch of the run, on every rank, before the first step; nothing of them stays.

What would run out of memory hours later does so at once: Adam's state appears in the first step, so that the second one holds all
that a step ever holds. The steps learn nothing: their learning rate is 0 (and their gradients are 0 where no engine steps by
itself), so that weights need no copy to be put back, however they are sharded. The optimizer's state, learning rates, schedule,
loss scale and random states are as before afterwards.
"""

import copy
import math
import random
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from training.events import Metrics, Note
from training.failure import UserError
from training.moments import Moments
from training.order import worst_batches
from training.report import Report, peak_bytes
from training.views import TargetView, View

STEPS = 2
_COUNTED = ("micro_steps", "global_steps", "global_samples", "skipped_steps")  # of DeepSpeed's engine
_MEASURES = ("_metrics", "_stored_metrics", "_total_train_tokens")  # of trl's trainers
_GIB = 2**30


def probe(trainer: Any, moments: Moments) -> None:
    """Takes the steps, and says how much memory they took. Every rank calls it, with its model placed and no step taken.

    Raises:
        torch.OutOfMemoryError: the largest batch does not fit; the moment says which rows it holds.
        UserError: its gradient is not finite, so that the run would diverge there.
    """
    view = moments.rows
    if view is None or trainer.optimizer.state:
        return
    batches = largest_batches(trainer, moments, view)
    with _as_before(trainer):
        for rows in batches * STEPS:
            _step(trainer, moments, view, rows)
    trainer.model.zero_grad()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    _tell(trainer.watch.report, view, batches)


def largest_batches(trainer: Any, moments: Moments, view: View) -> list[list[int]]:
    """The rows of the micro batch that takes most; of an encoder-decoder those with the longest source and target."""
    args = trainer.args
    sides = [view.source.lengths, view.target.lengths] if isinstance(view, TargetView) else [view.lengths]
    pads = not getattr(trainer.data_collator, "flat", False)
    found = [
        worst_batches(
            lengths,
            micro_batch=args.per_device_train_batch_size,
            accumulation=args.gradient_accumulation_steps,
            world=args.world_size,
            seed=args.seed,
            epochs=args.num_train_epochs,
            max_steps=trainer.state.max_steps,
            count=1,
            order=moments.order,
            pads=pads,
        )
        for lengths in sides
    ]
    rows = [batch.rows for one in found for batch in one]
    return rows[:1] if len(rows) > 1 and rows[0] == rows[1] else rows


def _step(trainer: Any, moments: Moments, view: View, rows: list[int]) -> None:
    """One optimizer step of two micro steps at most: in the second, the gradients of the first are there too."""
    count = min(2, trainer.args.gradient_accumulation_steps)
    for micro_step in range(count):
        last = micro_step == count - 1
        inputs = trainer.data_collator([view[row] for row in rows])
        moments.probe(inputs, rows)
        trainer.current_gradient_accumulation_steps = count
        trainer.accelerator.gradient_state._set_sync_gradients(last)
        _learn_nothing(trainer.optimizer)  # DeepSpeed steps where accelerate calls backward
        alone = not last and not trainer.is_deepspeed_enabled  # which is told by sync_gradients
        with trainer.accelerator.no_sync(trainer.model_wrapped) if alone else nullcontext():
            trainer.training_pass(trainer.model_wrapped, inputs)
    if trainer.is_deepspeed_enabled:
        _refuse_infinite(trainer)
    else:
        for parameter in trainer.model_wrapped.parameters():
            if parameter.grad is not None:
                parameter.grad.zero_()
    if trainer.args.max_grad_norm > 0:
        trainer._clip_grad_norm(trainer.model_wrapped)
    trainer.optimizer.step()
    trainer.model_wrapped.zero_grad()


def _learn_nothing(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].zero_()
        else:
            group["lr"] = 0.0


def _refuse_infinite(trainer: Any) -> None:
    """Even at a learning rate of 0 such a gradient makes the weights NaN; in fp16 DeepSpeed leaves the step out."""
    norm = trainer.accelerator.deepspeed_engine_wrapped.get_global_grad_norm()
    if norm is not None and not math.isfinite(norm) and not trainer.model_wrapped.fp16_enabled():
        message = "found that the gradient of the largest batch is not finite: the run would diverge there."
        raise UserError(
            "probe",
            "on",
            message,
            "Set precision to fp32, or look at its rows; set probe to off to begin all the same.",
        )


@contextmanager
def _as_before(trainer: Any) -> Iterator[None]:
    """Puts back at the end what the steps within have changed. A fresh optimizer has no state."""
    groups = [_without_parameters(group) for group in trainer.optimizer.param_groups]
    schedule = copy.deepcopy(trainer.lr_scheduler.state_dict())
    scaler = trainer.accelerator.scaler
    scale = scaler.state_dict() if scaler else None
    engine = trainer.model_wrapped if trainer.is_deepspeed_enabled else None
    counted = {name: getattr(engine, name) for name in _COUNTED} if engine else {}
    loss_scaler = getattr(getattr(engine, "optimizer", None), "loss_scaler", None)
    loss_scale = dict(vars(loss_scaler)) if loss_scaler else {}
    measures = {name: copy.deepcopy(vars(trainer)[name]) for name in _MEASURES if name in vars(trainer)}
    with _random_states_kept():
        yield
    trainer.optimizer.state.clear()
    for group, values in zip(trainer.optimizer.param_groups, groups, strict=True):
        _put_back(group, values)
    trainer.lr_scheduler.load_state_dict(schedule)
    if scaler:
        scaler.load_state_dict(scale)
    for name, value in counted.items():
        setattr(engine, name, value)
    if loss_scaler:
        vars(loss_scaler).update(loss_scale)
    vars(trainer).update(measures)


def _without_parameters(group: dict[str, Any]) -> dict[str, Any]:
    return {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}


def _put_back(group: dict[str, Any], values: dict[str, Any]) -> None:
    for name, value in values.items():
        if isinstance(group[name], torch.Tensor):
            group[name].copy_(value)
        else:
            group[name] = value


@contextmanager
def _random_states_kept() -> Iterator[None]:
    """The generators of Python, numpy and torch, on CPU and on this rank's GPU, go on as if nothing had been drawn within."""
    python, numpy = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


def _tell(report: Report, view: View, batches: list[list[int]]) -> None:
    peak = peak_bytes()
    report.each(Metrics(step=0, rank=report.rank, values={"probe_peak": peak}))
    longest = [int(view.lengths[rows].max()) for rows in batches]
    named = " and ".join(
        f"{len(rows)} rows, the longest of {tokens:,} tokens" for rows, tokens in zip(batches, longest, strict=True)
    )
    told = f"The largest batch of the run fits ({named}): {peak / _GIB:.2f} GiB at its peak on rank {report.rank}."
    report.once(Note(message=told))
