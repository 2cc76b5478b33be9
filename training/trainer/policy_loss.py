"""trl's losses of samples with advantages (GRPO and its variants), on log probabilities that are computed here."""

from typing import Any, NamedTuple

import torch
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from training.config.choices import PolicyLoss as PolicyLossName
from training.config.run_config import RunConfig
from training.trainer.loss_terms import BATCHES, ROWS, TOKENS, LossTerm
from training.trainer.prompts import Batch
from training.trainer.trl_loss import TrlLoss, gather_rows

_LARGEST_RATIO = 2.0
"""Of the model's probability of a token to that with which it was drawn."""
_OVER = {
    PolicyLossName.DAPO: TOKENS, PolicyLossName.CISPO: TOKENS, PolicyLossName.BNPO: BATCHES,
    PolicyLossName.GRPO: ROWS, PolicyLossName.DR_GRPO: ROWS,
}  # fmt: skip
"""The items over which each loss is a mean."""


class Pass(NamedTuple):
    """What a forward pass gives for the tokens of samples, of (rows, length), and a router's loss of shape ()."""

    logps: torch.Tensor
    entropy: torch.Tensor | None
    of_router: torch.Tensor | None


class PolicyLoss(TrlLoss):
    """The loss of samples: their clipped advantages, and a KL divergence from the reference."""

    def __init__(self, config: RunConfig, model: Any, tokenizer: Any, reference: Any) -> None:
        super().__init__(
            config, model, tokenizer, reference, GRPOTrainer, GRPOConfig,
            head=("log_probs", "entropy"), temperature=config.temperature,
            loss_type=config.policy_loss.value, importance_sampling_level=config.importance_sampling_level.value,
            epsilon_low=config.clip_low, epsilon_high=config.clip_high, beta=config.kl_coefficient,
            max_completion_length=config.max_completion_length, steps_per_generation=1, _entropy_bonus_enabled=False,
            use_bias_correction_kl=True,  # times the ratio, so that the gradient is that of the reverse KL divergence
        )  # fmt: skip
        self.of_trl.aux_loss_enabled = False  # a term of its own, from `forward`
        self.over = _OVER[config.policy_loss]

    def forward(self, model: Any, batch: Batch, *, alone: bool = False) -> Pass:
        """Runs a forward pass on samples; `alone`: for their log probabilities alone."""
        tokens = torch.cat([batch["prompt_ids"], batch["completion_ids"]], dim=1)
        mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], dim=1)
        found = self.of_trl._get_per_token_logps_and_entropies(
            model, tokens, mask, batch["completion_ids"].shape[1],
            compute_entropy=not alone, compute_aux_loss=bool(self.router) and not alone,
        )  # fmt: skip
        return Pass(*found)

    def terms(self, found: Pass, batch: Batch, sampler_logps: torch.Tensor | None = None) -> tuple[LossTerm, ...]:
        """Returns the loss of a micro batch from its forward pass, and that of a router.

        `sampler_logps` are the log probabilities of its tokens, of (rows, length), in a program that drew them in place of the
        model. Then the loss of a token is multiplied by the ratio of both probabilities: truncated importance sampling (Yao et al.
        2025).
        """
        mask = batch["completion_mask"]
        inputs = batch | {"num_items_in_batch": mask.sum()}
        if sampler_logps is not None:
            ratio = (batch.get("old_per_token_logps", found.logps.detach()) - sampler_logps).exp()
            ratio = inputs["importance_sampling_ratio"] = ratio.nan_to_num(1.0).clamp(max=_LARGEST_RATIO)
            self.note({"sampler_ratio": float((ratio * mask).sum() / mask.sum().clamp(min=1))})
        own = vars(self.of_trl)
        own |= {"use_vllm": sampler_logps is not None, "_get_per_token_logps_and_entropies": lambda *_, **__: found}
        try:
            loss = self.of_trl._compute_loss(self.of_trl.model, inputs)
        finally:
            del own["_get_per_token_logps_and_entropies"]
        if found.of_router is None:
            return (LossTerm(loss, self.over),)
        self.note({"aux_loss": float(gather_rows(found.of_router).mean())})
        return LossTerm(loss, self.over), self.of_router(found.of_router)
