"""The losses of preference tasks and of samples on fake tensors: those of trl's trainers, without their constructors, which load
models."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from training.config.run_config import RunConfig
from training.config.task import Task
from training.trainer.make_trainer import objective

Loss = Callable[[dict[str, Any]], torch.Tensor]


def prepare_preference(config: RunConfig, *models: Any) -> None:
    """Disables dropout and adds the fused head, which computes log-probabilities in tiles, as trl's constructors do."""
    from trl.trainer.utils import add_fused_lm_head, disable_dropout_in_model

    # Of the trained model, the first.
    measured = (
        ("log_probs", "entropy") if config.task.traits.samples else ("log_probs", "entropy", "mean_logits", "is_top1")
    )
    for number, model in enumerate(models):
        if config.task.traits.is_preference:
            disable_dropout_in_model(model)
        if config.task.traits.has_reference or config.task.traits.samples:
            base = model.get_base_model() if hasattr(model, "get_base_model") else model
            add_fused_lm_head(base, outputs=measured[:1] if number else measured)


def preference_loss(config: RunConfig, model: Any, reference: Any, autocast: Callable[[], Any]) -> Loss:
    """The loss of a batch, as the task's trainer computes it, in the context `autocast`."""
    from trl.trainer.grpo_trainer import GRPOTrainer  # Lathe's keeps log probabilities of earlier steps

    trainer: Any = object.__new__(GRPOTrainer if config.task is Task.GRPO else objective(config).trainer)
    vars(trainer).update(_attributes(config, autocast), **_experts(config, model), model=model, ref_model=reference)
    match config.task:
        case Task.DPO | Task.KTO:
            return lambda inputs: trainer._compute_loss(model, inputs, False)
        case Task.GRPO:
            return lambda inputs: trainer._compute_loss(
                model, inputs | {"num_items_in_batch": inputs["completion_mask"].sum()}
            )
        case Task.ORPO:
            from trl.experimental.orpo.orpo_trainer import ORPOTrainer

            return lambda inputs: ORPOTrainer.get_batch_loss_metrics(trainer, model, inputs)[0]
        case _:
            from trl.trainer.reward_trainer import RewardTrainer

            compute: Any = RewardTrainer.compute_loss
            return lambda inputs: compute(trainer, model, inputs)


def _attributes(config: RunConfig, autocast: Callable[[], Any]) -> dict[str, Any]:
    """What the constructors set, for the settings that Lathe gives them."""
    device, same = torch.device("cpu"), lambda value: value
    accelerator = SimpleNamespace(
        device=device, gather=same, gather_for_metrics=same, unwrap_model=same, num_processes=1, is_main_process=False,
        autocast=autocast,
        reduce=lambda value, **_: value,
    )  # fmt: skip
    kept = {"gradient_checkpointing_kwargs": {"use_reentrant": False}}
    args = SimpleNamespace(
        **kept, device=device, world_size=1, center_rewards_coefficient=None, delta=None, use_bias_correction_kl=False,
        steps_per_generation=1, report_to=[],
    )  # fmt: skip
    measured = {"_metrics": {"train": defaultdict(list)}, "_total_train_tokens": 0, "_tp_size": 1}
    of_dpo = {
        "loss_types": [config.dpo_loss.value],
        "loss_weights": [1.0],
        "label_smoothing": 0.0,
        "ld_alpha": None,
        "f_divergence_type": "reverse_kl",
        "use_weighting": False,
    }
    of_kto = {
        "loss_type": "kto",
        "calculate_KL": True,
        "desirable_weight": config.desirable_weight,
        "undesirable_weight": config.undesirable_weight,
    }
    of_orpo = {"is_encoder_decoder": False, "padding_value": 0}
    of_grpo = {
        "loss_type": config.policy_loss.value,
        "beta": config.kl_coefficient,
        "epsilon_low": config.clip_low,
        "epsilon_high": config.clip_high,
        "max_completion_length": config.max_completion_length,
        "importance_sampling_level": "token",
        "top_entropy_quantile": 1.0,
        "off_policy_mask_threshold": None,
        "use_vllm": False,
        "_entropy_bonus_enabled": False,
        "current_gradient_accumulation_steps": 1,
    }
    common = {"beta": config.beta, "precompute_ref_logps": False} | (of_grpo if config.task is Task.GRPO else {})
    return {"accelerator": accelerator, "args": args, **measured, **of_dpo, **of_kto, **of_orpo, **common}


def _experts(config: RunConfig, model: Any) -> dict[str, Any]:
    """Whether the loss that balances experts is added."""
    text = model.config.get_text_config()
    weight = getattr(text, "router_aux_loss_coef", None) or 0.0
    adds = config.task is not Task.ORPO or getattr(text, "output_router_logits", False)
    enabled = bool(adds and hasattr(text, "output_router_logits") and weight)
    return {"aux_loss_enabled": enabled, "router_aux_loss_coef": weight, "aux_loss_coef": weight}


@contextmanager
def head_on_cuda() -> Iterator[None]:
    """Within it, the fused head scores only the tokens with loss, in place in its tile, as its Triton kernels do."""
    from trl.kernels import chunked_logprob
    from trl.trainer import utils

    def in_place(*_: Any, **__: Any) -> None:
        """A kernel that allocates nothing."""

    with (
        patch.object(utils, "_use_triton", lambda _: True),
        patch.object(chunked_logprob, "_forward_tile", in_place),
        patch.object(chunked_logprob, "_backward_tile", in_place),
    ):
        yield
