"""Rules on optimizers, the weights that they support, the learning rate and its schedule."""

from collections.abc import Iterator
from dataclasses import dataclass

from training.config.choices import Method, Offload, Precision, Scheduler, Strategy
from training.config.machine import Machine
from training.config.optimizer_name import OptimizerName
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule


@rule
def muon_needs_whole_matrices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is not OptimizerName.MUON:
        return
    if config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "strategy"),
            "ZeRO gives the optimizer flat shards of the weights, and Muon orthogonalizes complete matrices.",
            "Set optimizer to adamw, or strategy to ddp.",
            {"optimizer": "adamw"},
        )
    elif config.method.adapts:
        yield Conflict(
            ("optimizer", "method"),
            "Muon is designed for full weight matrices; no benefit is known for the low-rank matrices of an adapter.",
            "Set optimizer to adamw, or method to full.",
            {"optimizer": "adamw"},
            blocking=False,
        )


@rule
def anyprecision_trains_bf16_weights(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is not OptimizerName.ADAMW_ANYPRECISION:
        return
    precision = machine.precision_of(config.precision)
    if precision is Precision.FP16:
        yield Conflict(
            ("optimizer", "precision"),
            "adamw_anyprecision stores the weights in the compute format, and fp16 loss scaling needs fp32 weights.",
            "Set optimizer to adamw, or precision to bf16 if the GPU supports it.",
            {"optimizer": "adamw"},
        )
    elif precision is Precision.FP32 or config.method.adapts or config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "precision", "method"),
            "adamw_anyprecision saves memory only if all weights train in bf16. With fp32 weights, adapters or ZeRO it works "
            "as adamw does.",
            "Set optimizer to adamw, or method to full, precision to bf16 and strategy to single or ddp.",
            {"optimizer": "adamw"},
            blocking=False,
        )


@rule
def some_optimizers_do_not_support_fsdp(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.strategy is Strategy.FSDP and not config.optimizer.traits.fsdp:
        yield Conflict(
            ("optimizer", "strategy"),
            f"{config.optimizer.value} does not support FSDP's sharded weights.",
            "Set optimizer to adamw, whose state FSDP shards, or strategy to zero2.",
            {"optimizer": "adamw"},
        )


@rule
def paged_optimizers_need_gpu_memory(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer.traits.paged and (machine.kind == "cpu" or config.offload_optimizer is not Offload.NONE):
        cause = (
            "this machine has no GPU" if machine.kind == "cpu" else "offload_optimizer keeps the state in host memory"
        )
        yield Conflict(
            ("optimizer",),
            f"A paged optimizer has no effect: {cause}.",
            "Set optimizer to adamw_8bit.",
            {"optimizer": "adamw_8bit"},
            blocking=False,
        )


@rule
def adafactor_needs_complete_matrices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.optimizer is OptimizerName.ADAFACTOR and config.strategy.zero_stage:
        yield Conflict(
            ("optimizer", "strategy"),
            "ZeRO gives the optimizer flat shards of the weights, for which adafactor stores a full second moment.",
            "Set optimizer to adamw_8bit, or strategy to ddp.",
            {"optimizer": "adamw_8bit"},
            blocking=False,
        )


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
# Of rewards, whose gradient has far more noise: the defaults of trl, and of Predibase for LoRA.
_FULL_ON_SAMPLES = _Bound(1e-4, 1e-2, 1e-6)
_LORA_ON_SAMPLES = _Bound(5e-3, 5e-2, 1e-5)


def _bound(config: RunConfig) -> _Bound | None:
    if config.method is Method.FULL:
        return _FULL_ON_SAMPLES if config.task.traits.rewards_samples else _FULL
    if config.method in _LORA_TYPE:
        return _LORA_ON_SAMPLES if config.task.traits.rewards_samples else _LORA
    return None


def usual_rate(config: RunConfig) -> float:
    """The learning rate that is usual for the method, task and optimizer of a run; its own where none is known."""
    bound, factor = _bound(config), config.optimizer.traits.rate_factor
    return _rounded(bound.usual * factor) if bound and factor else config.learning_rate


def lower_rate(config: RunConfig) -> tuple[float, str]:
    """The learning rate to try after one at which training diverged, and why: what is usual for the method and optimizer where the
    rate was far above that, and else half of it."""
    bound, factor = _bound(config), config.optimizer.traits.rate_factor
    if bound and factor and config.learning_rate > 2 * (usual := _rounded(bound.usual * factor)):
        return (
            usual,
            f"{_what(config)} usually trains with about {usual:g}, and the learning rate was {config.learning_rate:g}.",
        )
    return config.learning_rate / 2, f"{config.learning_rate / 2:g} is half the learning rate."


def _what(config: RunConfig) -> str:
    what = "Full fine-tuning" if config.method is Method.FULL else "LoRA"
    return what if config.optimizer.traits.rate_factor == 1 else f"{what} with {config.optimizer.value}"


def _rounded(rate: float) -> float:
    return float(f"{rate:.1g}")


@rule
def the_learning_rate_fits_the_method(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    bound, factor = _bound(config), config.optimizer.traits.rate_factor
    if bound is None or factor is None:
        return
    if config.learning_rate < bound.risky * factor:
        return
    sure = config.learning_rate >= bound.hopeless * factor
    effect = "Almost certainly, the loss will not fall" if sure else "Likely, the model will lose what it knows"
    usual, limit = _rounded(bound.usual * factor), bound.risky * factor
    yield Conflict(
        ("learning_rate", "method"),
        f"{effect}: {_what(config)} bears a learning rate up to about {limit:g}, and it is {config.learning_rate:g}.",
        f"Set learning_rate to {usual:g} or near it.",
        {"learning_rate": usual},
        blocking=False,
    )
