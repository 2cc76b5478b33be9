"""Objectives that compare answers, with trl's losses on Lathe's tokenized rows."""

from typing import Any

import torch
import torch.distributed as dist
from trl.experimental.orpo.orpo_config import ORPOConfig
from trl.experimental.orpo.orpo_trainer import ORPOTrainer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import RewardTrainer

from training.batches.collators import Collate, OddsCollator, PairCollator, ScoreCollator, UnpairedCollator
from training.config.run_config import RunConfig
from training.ranks.distributed import several_ranks
from training.trainer.loss_terms import ROWS, TOKENS, LossTerm, LossTerms
from training.trainer.objective import Objective
from training.trainer.reporting_trainer import ReportingTrainer
from training.trainer.trl_loss import LastOutputs, TrlLoss


class PreferenceObjective(Objective):
    """Compares answers; a pair is one row, and the loss a mean over rows."""

    trainer: ReportingTrainer
    trl: TrlLoss

    def begin(self, trainer: ReportingTrainer) -> None:
        """Also prepares the reference."""
        super().begin(trainer)
        self.trl.begin(trainer)

    def placed(self) -> dict[str, str]:
        """Takes the model as it was wrapped."""
        self.trl.placed(self.trainer)
        return {}

    def before_first_step(self) -> None:
        """Checks that a new adapter does not change the model."""
        self.trl.check_reference(self.trainer)

    def measured(self, logs: Any) -> dict[str, Any]:  # noqa: ARG002
        """Returns the means of what trl's loss measures."""
        return self.trl.measured(trains=self.trainer.model.training)

    def forget(self) -> None:
        """Forgets what trl's loss has measured."""
        self.trl.forget()

    def size(self, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Counts the tokens of both answers; a pair is one row."""
        return batch["attention_mask"].sum(), len(batch["attention_mask"]) // 2

    def items(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Returns the number of rows."""
        return {ROWS: torch.as_tensor(self.size(batch)[1])}

    def loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> LossTerms:
        """Returns trl's loss, and that of a router."""
        outputs = LastOutputs(model)
        terms = [LossTerm(self.mean(outputs, batch), ROWS)]
        if (added := getattr(outputs.last, "aux_loss", None)) is not None and self.trl.router:
            terms.append(self.trl.of_router(added))
        return LossTerms(tuple(terms))

    def mean(self, model: LastOutputs, batch: dict[str, Any]) -> torch.Tensor:
        """Returns trl's loss of a micro batch, of shape ()."""
        loss: torch.Tensor = self.trl.of_trl._compute_loss(model, batch, False)
        return loss


class DpoObjective(PreferenceObjective):
    """Direct preference optimization (Rafailov et al. 2023)."""

    def __init__(self, config: RunConfig, model: Any, *, reference: Any = None, **named: Any) -> None:
        super().__init__(config, model, **named)
        self.trl = TrlLoss(
            config, model, self.tokenizer, reference, DPOTrainer, DPOConfig,
            head=("log_probs", "entropy", "mean_logits", "is_top1"),
            beta=config.beta, loss_types=[config.dpo_loss.value], loss_weights=[1.0],
        )  # fmt: skip

    @classmethod
    def collator(cls, config: RunConfig, pad_token_id: int) -> Collate:  # noqa: ARG003
        """Chosen answers, then rejected ones."""
        return PairCollator(pad_token_id)


class KtoObjective(PreferenceObjective):
    """Kahneman-Tversky optimization (Ethayarajh et al. 2024)."""

    def __init__(self, config: RunConfig, model: Any, *, reference: Any = None, **named: Any) -> None:
        super().__init__(config, model, **named)
        weights = {name: getattr(config, name) for name in ("beta", "desirable_weight", "undesirable_weight")}
        self.trl = TrlLoss(
            config, model, self.tokenizer, reference, KTOTrainer, KTOConfig,
            head=("log_probs", "entropy", "mean_logits"), calculate_KL=True, _compute_kl_logps=self._kl_logps, **weights,
        )  # fmt: skip

    @classmethod
    def collator(cls, config: RunConfig, pad_token_id: int) -> Collate:
        """Answers with their labels, and the mismatched pairs of the KL term. It pairs answers within each batch, so rows need no
        special order."""
        return UnpairedCollator(pad_token_id, config.max_length)

    def _kl_logps(self, model: Any, batch: dict[str, Any]) -> torch.Tensor:
        """Scales trl's values so that its KL estimate, a mean over ranks of means over rows, is the mean over all rows."""
        compute: Any = KTOTrainer._compute_kl_logps
        logps: torch.Tensor = compute(self.trl.of_trl, model, batch)
        if not several_ranks():
            return logps
        rows = logps.new_tensor(0.0 if self.trainer.repeats_a_row else len(logps))
        total = rows.clone()
        dist.all_reduce(total)
        share: torch.Tensor = rows * dist.get_world_size() / total.clamp(min=1)
        return logps * share

    def size(self, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Counts the tokens of the answers, without the mismatched pairs of the KL term."""
        return batch["attention_mask"].sum(), len(batch["attention_mask"])


class OrpoObjective(PreferenceObjective):
    """Odds ratio preference optimization (Hong et al. 2024): a mean over the tokens of chosen answers, and one over pairs."""

    def __init__(self, config: RunConfig, model: Any, **named: Any) -> None:
        super().__init__(config, model, **named)
        padding = 0 if self.tokenizer is None else self.tokenizer.pad_token_id
        self.trl = TrlLoss(
            config, model, self.tokenizer, None, ORPOTrainer, ORPOConfig,
            beta=config.beta, is_encoder_decoder=False, padding_value=padding, concatenated_forward=self._forward,
        )  # fmt: skip
        self.trl.of_trl.aux_loss_enabled = bool(getattr(model.config, "output_router_logits", False))

    @classmethod
    def collator(cls, config: RunConfig, pad_token_id: int) -> Collate:  # noqa: ARG003
        """Chosen and rejected answers as separate tensors."""
        return OddsCollator(pad_token_id)

    def size(self, batch: dict[str, Any]) -> tuple[torch.Tensor, int]:
        """Counts the tokens of both answers; a pair is one row."""
        chosen, rejected = batch["chosen_attention_mask"], batch["rejected_attention_mask"]
        return chosen.sum() + rejected.sum(), len(chosen)

    def items(self, batch: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Returns the number of pairs, and that of the tokens of chosen answers that are predicted."""
        return super().items(batch) | {TOKENS: batch["chosen_attention_mask"][:, 1:].sum()}

    def loss(self, model: torch.nn.Module, batch: dict[str, Any]) -> LossTerms:
        """Returns the loss over pairs, that over tokens, and that of a router."""
        of_pairs, *others = super().loss(model, batch).terms
        return LossTerms((of_pairs, LossTerm(self._of_tokens, TOKENS), *others))

    def mean(self, model: LastOutputs, batch: dict[str, Any]) -> torch.Tensor:
        """Returns the loss over pairs."""
        loss: torch.Tensor
        loss, measured = self.trl.of_trl.get_batch_loss_metrics(model, batch)
        tokens = float(self.trl.of_trl.accelerator.gather(self._of_tokens).detach().mean())
        self.trl.note(measured | {"nll_loss": tokens}, "train" if self.trl.of_trl.model.training else "eval")
        return loss

    def _forward(self, model: Any, batch: dict[str, Any]) -> tuple[Any, ...]:
        """trl's outputs; the loss over tokens, which is the fifth, is taken out."""
        parts = list(ORPOTrainer.concatenated_forward(self.trl.of_trl, model, batch))
        self._of_tokens: torch.Tensor = parts[4]
        return (*parts[:4], torch.zeros_like(parts[4]), *parts[5:])


class RewardObjective(PreferenceObjective):
    """A reward model on pairs (Bradley-Terry)."""

    def __init__(self, config: RunConfig, model: Any, **named: Any) -> None:
        super().__init__(config, model, **named)
        self.trl = TrlLoss(config, model, self.tokenizer, None, RewardTrainer, RewardConfig)

    @classmethod
    def collator(cls, config: RunConfig, pad_token_id: int) -> Collate:  # noqa: ARG003
        """Chosen answers, then rejected ones, as whole sequences."""
        return ScoreCollator(pad_token_id)

    def mean(self, model: LastOutputs, batch: dict[str, Any]) -> torch.Tensor:
        """Returns trl's loss of a micro batch, of shape ()."""
        loss: torch.Tensor = self.trl.of_trl.compute_loss(model, batch)
        return loss
