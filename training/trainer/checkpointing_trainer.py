"""The run that a trainer belongs to; a Trainer that saves checkpoints in the background and resumes from those of other layouts."""

import gc
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from training.checkpointing import weights
from training.checkpointing.checkpointer import Checkpointer
from training.checkpointing.contents import check_contents, check_missing, refuse
from training.checkpointing.digest import Digest, plain_name, trained_shapes
from training.checkpointing.resharding import read_weights, restore, trained_parameters
from training.config.choices import Offload, Strategy
from training.config.run_config import RunConfig
from training.ranks.stopping import StopSignal
from training.reports.experiment_trackers import ExperimentTrackers
from training.reports.report import Report
from training.reports.step_position import StepTracker
from training.run_folder.checkpoint_layout import CheckpointLayout
from training.run_folder.paths import checkpoint_dir
from training.trainer.answering import SampleAnswers
from training.trainer.callbacks import best_to_load
from training.trainer.global_batch import GlobalBatchTrainer
from training.trainer.metrics import Throughput
from training.trainer.tied_weights import check_ties, kept_tied, ties


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


class CheckpointingTrainer(GlobalBatchTrainer):
    """Trainer with Lathe's checkpoints; a subclass sets the attributes."""

    checkpointer: Checkpointer
    throughput: Throughput
    context: TrainerContext
    _prepared = False
    resumed_from: str | None = None  # until the first step of the attempt

    def train(self, resume_from_checkpoint: str | None = None, **named: Any) -> Any:
        """Trains, and waits until the last checkpoint is complete. Takes no step if the checkpoint is that of the last one."""
        self.resumed_from = resume_from_checkpoint
        with self.objective.running():
            try:
                result = super().train(resume_from_checkpoint=resume_from_checkpoint, **named)
            except Exception:
                self.checkpointer.wait_after_error()
                raise
            self.checkpointer.wait()
        return result

    def prepare_checkpoints(self) -> None:
        """Reserves host memory for the weights and the optimizer state, once that exists: after the first step.

        Not with shards: DeepSpeed's checkpoints make new tensors, and DTensors (FSDP) cannot be copied beside training.
        """
        if self._has_copies and not self._prepared and self.optimizer.state:
            self._prepared = True
            trained = (parameter.detach() for parameter in self.model.parameters() if parameter.requires_grad)
            states = (value for state in self.optimizer.state.values() for value in state.values())
            self.checkpointer.prepare(value for value in chain(trained, states) if type(value) is torch.Tensor)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As Trainer's, which copies all weights to host memory on every rank with ZeRO-1 and ZeRO-2, gathers the frozen base
        weights of FSDP, and with ZeRO-3 keeps what it gathered: DeepSpeed's function for it is part of a reference cycle.
        """
        config, model = self.context.config, self.unwrapped
        if config.strategy.zero_stage in (0, 1, 2):
            if self.args.should_save:
                self._save(output_dir, state_dict=weights.copied(model))
        elif self._gathers_all and config.method.adapts:
            self._save(output_dir, state_dict=weights.gathered_trained(model))
        else:
            super().save_model(output_dir, _internal_call)
        if config.strategy is Strategy.ZERO3:
            gc.collect()

    @property
    def _gathers_all(self) -> bool:
        """True if FSDP saves whole weights, as for a result."""
        plugin = self.accelerator.state.fsdp_plugin if self.is_fsdp_enabled else None
        return plugin is not None and "FULL_STATE_DICT" in str(plugin.state_dict_type)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        self.throughput.pause()
        self.state.num_input_tokens_seen = self.throughput.tokens()  # saved with the checkpoint
        step, write = self.state.global_step, partial(super()._save_checkpoint, model, trial)
        folder, layout, further = (
            checkpoint_dir(self.context.run_dir, step),
            self._layout(),
            self.objective.further_files(),
        )

        def write_all() -> None:
            with weights.own_names(self.unwrapped):
                write()
            if self.is_world_process_zero():
                layout.write(folder)
                for name, text in further.items():
                    (folder / name).write_text(text, encoding="utf-8")
                weights.write_rank_allocation(self.unwrapped, folder)
                if digest:
                    digest.write(folder)
                if self._has_copies:
                    weights.write_left_out(self.unwrapped, folder)

        with self.context.report.during("saving"):
            digest = self.prove(folder.name)
            if digest and digest.not_finite:
                self.context.stop.diverged = self.control.should_training_stop = True
            else:
                check = partial(check_contents, layout=layout, trained=trained_shapes(self.unwrapped))
                best = best_to_load(self.context.config, self.state)
                self.checkpointer.save(step, best and best.step, write_all, check)
        self.throughput.resume()

    @property
    def unwrapped(self) -> torch.nn.Module:
        """The model without what the strategy wraps around it."""
        model: torch.nn.Module = self.accelerator.unwrap_model(self.model)
        return model

    @property
    def _has_copies(self) -> bool:
        """True if each rank has all weights and the whole optimizer state, and files are those of PEFT or transformers."""
        return self.context.config.strategy in (Strategy.SINGLE, Strategy.DDP)

    def prove(self, name: str) -> Digest | None:
        """Checks that the ranks hold every trained parameter, before it is saved as `name`. A collective.

        Returns its digest; None if the state is in files of NVMe offloading.

        Raises:
            UserError: they do not.
        """
        digest = self.digest()
        if digest and (missing := digest.incomplete(trained_shapes(self.unwrapped))):
            check_missing(name, missing, len(digest.rows))
        return digest

    def digest(self) -> Digest | None:
        """The digest of what is trained; None with NVMe offloading. A collective."""
        config = self.context.config
        if Offload.NVME in (config.offload_optimizer, config.offload_param):
            return None
        divided = not self._has_copies and config.strategy is not Strategy.ZERO0
        return Digest.of(self.unwrapped, self.optimizer, divided=divided)

    def _check_loaded(self, checkpoint: str | Path, *, weights_only: bool = False) -> None:
        """Checks that what a checkpoint was loaded into is what was saved. A collective.

        Raises:
            UserError: weights or optimizer state differ.
        """
        saved, digest = Digest.read(Path(checkpoint)), self.digest()
        if saved is None or digest is None:
            return
        converted = self._other_layout(checkpoint) is not None
        if different := digest.differences(saved, converted=converted, weights_only=weights_only):
            what = "weights" if weights_only else "weights or optimizer state"
            refuse(
                Path(checkpoint).name,
                f"was loaded with other {what} than were saved, in {len(different)} of {len(digest.rows)} trained "
                f"parameters, such as {different[0]}.",
            )

    def _layout(self) -> CheckpointLayout:
        config = self.context.config
        try:
            parameters, shapes = trained_parameters(self.unwrapped, self.optimizer)
        except KeyError:  # DeepSpeed without sharding trains flat copies of the parameters
            parameters, shapes = [], []
        names = {} if config.strategy.zero_stage is not None else weights.saved_names(self.unwrapped)
        saved = [names.get(name, name) for name in parameters]
        size = config.global_batch_size
        return CheckpointLayout(
            config.strategy, self.args.world_size, size, parameters, shapes, saved, config.learning_rate
        )

    def _prepare_for_training(self, max_steps: int, train_dataloader: Any, resume_from_checkpoint: str | None) -> Any:
        # A loader has its process's part of each sequence already, which DeepSpeed's adapter would divide again.
        self.accelerator.deepspeed_ulysses_dl_adapter = lambda loader, _: loader
        layout = self._other_layout(resume_from_checkpoint)
        loads = resume_from_checkpoint if layout is None else None
        shared = ties(self.model)
        with kept_tied(self.model):
            prepared = super()._prepare_for_training(max_steps, train_dataloader, loads)
        if layout is not None and resume_from_checkpoint:
            restore(Path(resume_from_checkpoint), layout, self.unwrapped, self.optimizer)
            self._restore_scheduler(torch.load(Path(resume_from_checkpoint) / "scheduler.pt", weights_only=True))
        if resume_from_checkpoint:
            weights.restore_rank_allocation(self.unwrapped, Path(resume_from_checkpoint))
            self._check_loaded(resume_from_checkpoint)
            self._set_learning_rate(CheckpointLayout.read(Path(resume_from_checkpoint)))
        check_ties(shared, self.unwrapped, self.context.config.strategy)
        return prepared

    def _set_learning_rate(self, layout: CheckpointLayout | None) -> None:
        """Replaces the rates of a checkpoint by those of the run's own learning rate, if that has changed."""
        before, now = layout and layout.learning_rate, self.context.config.learning_rate
        if not before or before == now:
            return
        for group in self.optimizer.param_groups:
            for name in {"lr", "initial_lr"} & group.keys():
                group[name] *= now / before
        for name in ("base_lrs", "_last_lr"):
            if hasattr(self.lr_scheduler, name):
                setattr(self.lr_scheduler, name, [rate * now / before for rate in getattr(self.lr_scheduler, name)])

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        if self._other_layout(resume_from_checkpoint) is None and not self._load_copies(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def load_weights(self, checkpoint: Path) -> None:
        """Loads the weights of a checkpoint of this run. Every rank calls it.

        Raises:
            UserError: they are not those that were saved.
        """
        if layout := self._other_layout(checkpoint):
            restore(checkpoint, layout, self.unwrapped, self.optimizer)
        elif not self._load_copies(checkpoint):
            self.state.best_model_checkpoint = str(checkpoint)
            self._load_best_model()
        self._check_loaded(checkpoint, weights_only=True)

    def _load_copies(self, checkpoint: str | Path) -> bool:
        """Loads the trained weights by name. False if the ranks divide them, or if an earlier version wrote the checkpoint."""
        layout = CheckpointLayout.read(Path(checkpoint)) if self._has_copies else None
        if layout is None or not layout.saved_names:
            return False
        saved = read_weights(Path(checkpoint), layout)
        with torch.no_grad():
            for name, parameter in self.unwrapped.named_parameters():
                if parameter.requires_grad:
                    parameter.copy_(saved[plain_name(name)])
        return True

    def _other_layout(self, checkpoint: str | Path | None) -> CheckpointLayout | None:
        """The layout of a checkpoint that the libraries cannot load into this run; None if they can."""
        layout = CheckpointLayout.read(Path(checkpoint)) if checkpoint else None
        return None if layout is None or layout.loads_as_it_is(self.context.config) else layout

    def _restore_scheduler(self, state: dict[str, Any]) -> None:
        groups, before = self.optimizer.param_groups, len(state["_last_lr"])
        if before != len(groups):  # DeepSpeed leaves out groups without parameters; the others have the same rate
            state = {
                name: value[:1] * len(groups) if isinstance(value, list) and len(value) == before else value
                for name, value in state.items()
            }
        self.lr_scheduler.load_state_dict(state)
        for group, rate in zip(groups, state["_last_lr"], strict=True):
            group["lr"] = rate
