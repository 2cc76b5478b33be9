"""Rules on the learning rate and its schedule."""

from collections.abc import Iterator
from dataclasses import dataclass

from training.config.choices import Method, OptimizerName, Scheduler
from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def reduce_on_plateau_needs_evaluation(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.lr_scheduler is Scheduler.REDUCE_ON_PLATEAU and not config.evaluates:
        yield Conflict(
            ("lr_scheduler", "eval_steps", "eval_split"),
            "reduce_on_plateau needs the evaluation loss, and the run does not evaluate during training.",
            "Set eval_steps and eval_split above 0, or lr_scheduler to cosine.",
            {"lr_scheduler": "cosine"},
        )


@rule
def warmup_and_decay_fit_into_the_run(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.lr_scheduler is Scheduler.WSD and config.warmup < 1 and config.warmup + config.decay_share > 1:
        yield Conflict(
            ("decay_share", "warmup"),
            f"Warmup ({config.warmup:g}) plus decay ({config.decay_share:g}) is longer than the run.",
            "Lower warmup or decay_share.",
            {"decay_share": round(1 - config.warmup, 4)},
        )


_ADAM_LIKE = {name for name in OptimizerName if name not in (OptimizerName.SGD, OptimizerName.MUON)}
_LION = {OptimizerName.LION, OptimizerName.LION_8BIT}
_LION_FACTOR = 0.3  # Chen et al., "Symbolic Discovery of Optimization Algorithms" (2023): 3 to 10 times less than AdamW
_LORA_TYPE = {Method.LORA, Method.QLORA, Method.ADALORA}


@dataclass(frozen=True)
class _Bound:
    """Learning rates of AdamW: from `risky` on most runs lose what the model knew, from `hopeless` on the loss does not fall."""

    risky: float
    hopeless: float
    usual: float


# Full: the models' own peak rates in pretraining are 1.5e-4 to 1e-3. LoRA: Hu et al. (2021) use 2e-4, and the best rate is about
# ten times that of full fine-tuning (Schulman et al., "LoRA Without Regret", 2025). Others, such as prompt tuning, bear more.
_FULL = _Bound(1e-3, 1e-2, 2e-5)
_LORA = _Bound(5e-3, 5e-2, 2e-4)


@rule
def the_learning_rate_fits_the_method(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    bound = _FULL if config.method is Method.FULL else _LORA if config.method in _LORA_TYPE else None
    if bound is None or config.optimizer not in _ADAM_LIKE:
        return
    factor = _LION_FACTOR if config.optimizer in _LION else 1.0
    if config.learning_rate < bound.risky * factor:
        return
    sure = config.learning_rate >= bound.hopeless * factor
    what = "Full fine-tuning" if config.method is Method.FULL else "LoRA"
    rate, optimizer = f"{config.learning_rate:g}", f" with {config.optimizer.value}" if factor < 1 else ""
    effect = "Almost certainly, the loss will not fall" if sure else "Likely, the model will lose what it knows"
    usual = float(f"{bound.usual * factor:.1g}")
    yield Conflict(
        ("learning_rate", "method"),
        f"{effect}: {what}{optimizer} bears a learning rate up to about {bound.risky * factor:g}, and it is {rate}.",
        f"Set learning_rate to {usual:g} or near it.",
        {"learning_rate": usual},
        blocking=False,
    )
