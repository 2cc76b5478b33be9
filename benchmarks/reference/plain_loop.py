"""A plain training loop in fp32 on CPU, with only torch, transformers and peft: the reference of benchmarks/reference/command.py.

A step's loss is the mean over the tokens with loss (for a classifier, over the rows) of the global batch. It computes rows one
by one, without padding, so nothing depends on micro batches, ranks or layout. Auxiliary losses are added once per step: a router's
load-balancing loss as the mean over the micro batches, AdaLoRA's orthogonality term as it is. The evaluation loss is the same
mean over the held-out rows, without auxiliary losses. NEFTune's noise is the pattern that ranks.py puts in its place.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors.torch import load_file
from torch.nn import functional

from benchmarks.reference.rows import IGNORED, Row

Step = list[list[list[int]]]
"""The rows of an optimizer step, by their place in the data: micro step, rank, row."""


PAD_MULTIPLE = 8
"""Padded batches have a multiple of so many tokens."""


def pattern(length: int, size: int) -> torch.Tensor:
    """Returns numbers in [-1, 1] of shape (length, size) in place of random ones."""
    return torch.arange(length * size).reshape(length, size).sin()


@dataclass
class Curve:
    """Losses and gradient norms (before clipping) of all steps, and the evaluation loss after the last."""

    losses: list[float] = field(default_factory=list)
    gradients: list[float] = field(default_factory=list)
    evaluation: float = float("nan")


class Learner(Protocol):
    """A model with its data and loss."""

    model: Any

    def parts(self, step: Step) -> Iterator[torch.Tensor]:
        """Yields the parts whose sum is the loss of a step."""

    def after_step(self, number: int) -> None:
        """Called with the number of steps done, before the gradients are zeroed."""

    def evaluate(self) -> float:
        """Returns the loss of the held-out rows."""

    def take(self, model: Any) -> None:
        """Evaluates this model from now on."""


def run(learner: Learner, steps: list[Step], settings: dict[str, Any]) -> Curve:
    """Trains on `steps` with the optimizer, schedule and clipping of a run's `settings`."""
    trained = [weight for weight in learner.model.parameters() if weight.requires_grad]
    stepper = _optimizer(learner.model, settings)
    curve = Curve()
    learner.model.train()
    for number, step in enumerate(steps):
        for group in stepper.param_groups:
            group["lr"] = settings["learning_rate"] * _share_of_rate(number, len(steps), settings)
        loss = 0.0
        for part in learner.parts(step):
            part.backward()  # type: ignore[no-untyped-call]
            loss += part.item()
        curve.losses.append(loss)
        norm = torch.nn.utils.clip_grad_norm_(trained, settings.get("max_grad_norm", 1.0))
        curve.gradients.append(norm.item())
        stepper.step()
        learner.after_step(number + 1)
        stepper.zero_grad()
    learner.model.eval()
    with torch.no_grad():
        curve.evaluation = learner.evaluate()
    return curve


def _optimizer(model: Any, settings: dict[str, Any]) -> torch.optim.Optimizer:
    """SGD or AdamW; biases and the weights of norms do not decay."""
    decaying: list[torch.nn.Parameter] = []
    others: list[torch.nn.Parameter] = []
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            fixed = name.endswith("bias") or "norm" in name.lower() or ".ln_" in name
            (others if fixed else decaying).append(weight)
    groups = [
        {"params": decaying, "weight_decay": settings.get("weight_decay", 0.0)},
        {"params": others, "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    if settings["optimizer"] == "sgd":
        return torch.optim.SGD(groups, lr=settings["learning_rate"], momentum=settings["momentum"])
    betas = (0.9, settings.get("adam_beta2", 0.999))
    return torch.optim.AdamW(groups, lr=settings["learning_rate"], betas=betas)


def _share_of_rate(number: int, steps: int, settings: dict[str, Any]) -> float:
    """The learning rate of step `number` (from 0) as a share of the highest."""
    warmup = settings["warmup"]
    if number < warmup:
        return float(number / warmup)
    rest = (number - warmup) / (steps - warmup)
    match settings.get("lr_scheduler", "linear"):
        case "linear":
            return float(1 - rest)
        case "cosine":
            return (1 + math.cos(math.pi * rest)) / 2
    return 1.0


def load(kind: str, folder: Path, initial: Path, adapter: Any = None, **head: Any) -> Any:
    """Loads a model in fp32 with an `adapter` (a PEFT configuration, or the folder of one to continue); weights missing in the
    folder come from `initial`."""
    import transformers
    from peft import PeftModel, get_peft_model

    model, report = getattr(transformers, kind).from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **head
    )
    model.config.pad_token_id = 0
    drawn = tuple(report["missing_keys"])
    if isinstance(adapter, Path):  # to continue
        return PeftModel.from_pretrained(model, adapter, is_trainable=True)
    adapted = get_peft_model(model, adapter) if adapter else model
    begin_with(adapted, initial, drawn)
    return adapted


def reloaded(kind: str, saved: Path, base: Path | None, **head: Any) -> Any:
    """Loads what a run saved: a model, or an adapter of the model in `base`."""
    import transformers
    from peft import PeftModel

    loader = getattr(transformers, kind)
    model = loader.from_pretrained(base or saved, dtype=torch.float32, attn_implementation="eager", **head)
    model.config.pad_token_id = 0
    return (PeftModel.from_pretrained(model, saved) if base else model).eval()


def begin_with(model: Any, initial: Path, drawn: tuple[str, ...]) -> None:
    """Sets the weights named in `drawn`, and those of an adapter, to the initial values of a run."""
    known = load_file(initial)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.requires_grad and (name in drawn or hasattr(model, "peft_config")):
                weight.copy_(known[name])


@dataclass
class TokenLearner:
    """Language models: the mean over tokens."""

    model: Any
    rows: list[Row]
    held_out: list[Row]
    noise: float = field(default=0.0, kw_only=True)
    """NEFTune's alpha."""

    def parts(self, step: Step) -> Iterator[torch.Tensor]:
        batches = [[self.rows[row] for row in rank] for micro in step for rank in micro]
        count = sum(self._count(row) for rows in batches for row in rows)
        for rows in batches:
            for row in rows:
                yield self._summed(row, padded=max(len(other.ids) for other in rows)) / count

    def after_step(self, number: int) -> None:
        pass

    def evaluate(self) -> float:
        total = sum(self._summed(row).item() for row in self.held_out)
        return total / sum(self._count(row) for row in self.held_out)

    def take(self, model: Any) -> None:
        self.model = model

    def _summed(self, row: Row, padded: int = 0) -> torch.Tensor:
        """Returns the weighted sum of the cross-entropy over a row's tokens; in training, in a batch of `padded` tokens."""
        logits = self.model(**self._inputs(row, padded)).logits[0, :-1]
        labels = torch.tensor(row.labels[1:])
        return row.weight * functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")

    def _inputs(self, row: Row, padded: int) -> dict[str, torch.Tensor]:
        """Returns the row's tokens, or with NEFTune their embeddings with noise, whose size depends on the length of the batch."""
        tokens = torch.tensor([row.ids])
        if not (padded and self.noise):
            return {"input_ids": tokens}
        embedded = self.model.get_input_embeddings()(tokens)
        length = -(-padded // PAD_MULTIPLE) * PAD_MULTIPLE
        size = self.noise / math.sqrt(length * embedded.shape[-1])
        return {"inputs_embeds": embedded + size * pattern(length, embedded.shape[-1])[: len(row.ids)]}

    def _count(self, row: Row) -> float:
        return row.weight * sum(label != IGNORED for label in row.labels[1:])


class TargetLearner(TokenLearner):
    """Encoder-decoders: each token of a target is predicted from the source and the target before it."""

    def _summed(self, row: Row, padded: int = 0) -> torch.Tensor:  # noqa: ARG002 - without noise
        before = [self.model.config.decoder_start_token_id, *row.labels[:-1]]
        logits = self.model(input_ids=torch.tensor([row.ids]), decoder_input_ids=torch.tensor([before])).logits[0]
        return functional.cross_entropy(logits, torch.tensor(row.labels), reduction="sum")

    def _count(self, row: Row) -> float:
        return len(row.labels)


class ClassLearner(TokenLearner):
    """Classifiers: the mean over rows."""

    def _summed(self, row: Row, padded: int = 0) -> torch.Tensor:  # noqa: ARG002 - without noise
        return functional.cross_entropy(self.model(input_ids=torch.tensor([row.ids])).logits, torch.tensor(row.labels))

    def _count(self, row: Row) -> float:  # noqa: ARG002 - a row is one, however long
        return 1


class ExpertLearner(TokenLearner):
    """A mixture of experts: the mean over tokens, plus the mean over micro batches of the load-balancing loss."""

    def parts(self, step: Step) -> Iterator[torch.Tensor]:
        yield from super().parts(step)
        micro_batches = [rank for micro in step for rank in micro if rank]
        for batch in micro_batches:
            yield self._balance([self.rows[row] for row in batch]) / len(micro_batches)

    def _balance(self, rows: list[Row]) -> torch.Tensor:
        """Returns coefficient x experts x sum over experts of (share of choices) x (mean probability), of all tokens and layers."""
        config, padded = self.model.config, max(len(row.ids) for row in rows)
        tokens = [self.model(**self._inputs(row, padded), output_router_logits=True).router_logits for row in rows]
        likely = torch.cat([layer for row in tokens for layer in row]).softmax(-1)
        chosen = likely.topk(config.num_experts_per_tok).indices
        shares = functional.one_hot(chosen, config.num_local_experts).float().mean(0).sum(0)
        balance: torch.Tensor = config.num_local_experts * (shares * likely.mean(0)).sum()
        weight: float = config.router_aux_loss_coef
        return weight * balance


class RankLearner(TokenLearner):
    """AdaLoRA: the mean over tokens, plus the orthogonality term once per step."""

    def parts(self, step: Step) -> Iterator[torch.Tensor]:
        yield from super().parts(step)
        matrices = [(name, weight) for name, weight in self.model.named_parameters() if ".lora_" in name]
        products = [
            weight @ weight.T if ".lora_A." in name else weight.T @ weight
            for name, weight in matrices
            if ".lora_A." in name or ".lora_B." in name
        ]
        distances = [torch.linalg.norm(product - torch.eye(len(product))) for product in products]
        yield self.model.peft_config["default"].orth_reg_weight * torch.stack(distances).mean()

    def after_step(self, number: int) -> None:
        self.model.base_model.update_and_allocate(number)


LEARNERS: dict[str, Callable[..., TokenLearner]] = {
    "sft": TokenLearner,
    "pretraining": TokenLearner,
    "seq2seq": TargetLearner,
    "classification": ClassLearner,
    "mixture": ExpertLearner,
    "adalora": RankLearner,
}
