"""What to change so that a run fits: every rung of the ladder tried by forecast, ordered by the speed it should have. No torch.

The rungs are those people climb by hand: activations recomputed, ZeRO-2, the optimizer offloaded, ZeRO-3, parameters offloaded,
NVMe; a smaller micro batch with as much more accumulation; frozen weights in 4 bits; an optimizer with 8-bit state. The global
batch is the same in all of them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from training.activations import Batch
from training.cards import Card
from training.config import Checkpointing, Method, Offload, OptimizerName, Quantization, RunConfig, Strategy, Task
from training.memory import SLACK, Forecast, forecast
from training.memory_sizes import resolved
from training.model_shape import ModelShape
from training.rules import Machine, check

COUNT = 4
PCIE = 20e9
"""Bytes a second between a GPU and host memory: PCIe 4 with 16 lanes, as copies measure it."""
NVME = 4e9
"""Bytes a second of a fast NVMe disk."""
HOST_ADAM = 2e9
"""Weights a second that AdamW steps on a server's CPU."""

Changes = dict[str, Any]
_PLAIN = {"offload_optimizer": "none", "offload_param": "none"}
_ONE = ("single", "zero2 optimizer", "zero3 optimizer param", "zero3 nvme")
_MANY = (
    "ddp",
    "zero2",
    "zero2 optimizer",
    "zero3",
    "zero3 param",
    "zero3 optimizer param",
    "zero3 nvme",
    "fsdp",
    "fsdp param",
)


@dataclass(frozen=True)
class Advice:
    """A configuration that was tried: `changes` to the settings, its forecast, its speed as a share of the fastest tried
    (whether that fits or not), and what it costs in words."""

    changes: Changes
    forecast: Forecast
    relative_speed: float
    cost: str

    @property
    def fits(self) -> bool:
        return self.forecast.fits


def advise(
    config: RunConfig,
    shape: ModelShape,
    card: Card,
    *,
    batch: Batch,
    host_limit_bytes: int | None = None,
    nvme: bool = False,
    slack: float = SLACK,
    count: int = COUNT,
) -> list[Advice]:
    """The fastest configurations that fit, at most `count`, none of which can be had by changing less at the same speed.

    `batch` is the worst micro batch of `config` as it is. Empty where nothing fits.
    """
    machine = Machine(
        "cuda",
        config.num_processes,
        [card.label] * config.num_processes,
        [card.memory_bytes] * config.num_processes,
        card.bf16,
    )
    tried: list[tuple[float, Advice]] = []
    fastest = float("inf")
    for changes in _candidates(config, shape, nvme=nvme):
        changed = config.model_copy(update=_typed(config, changes))
        if any(one.blocking for one in check(changed, machine)):
            continue
        found = forecast(
            changed,
            shape,
            card=card,
            batch=_smaller(batch, config, changed),
            host_limit_bytes=host_limit_bytes,
            slack=slack,
        )
        seconds = step_seconds(changed, shape, card, batch)
        fastest = min(fastest, seconds)
        if found.fits:
            tried.append((seconds, Advice(changes, found, 0.0, cost(config, changed))))
    tried.sort(key=lambda one: (round(one[0], 6), len(one[1].changes)))
    return [replace(one, relative_speed=fastest / seconds) for seconds, one in _distinct(tried)][:count]


def _distinct(tried: list[tuple[float, Advice]]) -> Iterator[tuple[float, Advice]]:
    """Each strategy and method once, at its fastest: the others would crowd out what is really another way."""
    seen = set()
    for seconds, one in tried:
        way = tuple(
            one.changes.get(name)
            for name in ("strategy", "offload_optimizer", "offload_param", "quantization", "optimizer")
        )
        if way not in seen:
            seen.add(way)
            yield seconds, one


def _candidates(config: RunConfig, shape: ModelShape, *, nvme: bool) -> Iterator[Changes]:
    """Settings to change, the configuration as it is first."""
    ways = [way for way in (_MANY if config.num_processes > 1 else _ONE) if nvme or "nvme" not in way]
    for way, kept, batch, quantized, state in product(
        ways, _kept(config), _batches(config), _quantized(config, shape), _states(config)
    ):
        changes = _strategy(way) | kept | batch | quantized | state
        yield {name: value for name, value in changes.items() if str(getattr(config, name)) != str(value)}


def _strategy(way: str) -> Changes:
    name, *offloads = way.split()
    changes: Changes = {"strategy": name} | _PLAIN
    if "nvme" in offloads:
        return changes | {"offload_optimizer": "nvme", "offload_param": "nvme"}
    return changes | {f"offload_{one}": "cpu" for one in offloads}


def _kept(config: RunConfig) -> list[Changes]:
    """What is recomputed: as asked for and more."""
    order = [Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL, Checkpointing.OFFLOADED]
    return [{"gradient_checkpointing": one.value} for one in order[order.index(config.gradient_checkpointing) :]]


def _batches(config: RunConfig) -> list[Changes]:
    """The micro batch and smaller ones of the same global batch."""
    together, size = config.micro_batch_size * config.gradient_accumulation_steps, config.micro_batch_size
    least = 2 if config.task is Task.KTO else 1
    found = [{"micro_batch_size": size, "gradient_accumulation_steps": config.gradient_accumulation_steps}]
    while (size := size // 2) >= least:
        if together % size == 0:
            found.append({"micro_batch_size": size, "gradient_accumulation_steps": together // size})
    return found


def _quantized(config: RunConfig, shape: ModelShape) -> list[Changes]:
    """Frozen weights as they are, and in 4 bits where that packs most of them: experts held as one tensor stay whole."""
    packs = 2 * shape.linear_weights >= shape.parameters
    if packs and config.method is Method.LORA and config.quantized is Quantization.NONE:
        return [{}, {"method": "qlora", "quantization": "4bit"}]
    return [{}]


def _states(config: RunConfig) -> list[Changes]:
    """The optimizer, and AdamW with 8-bit state in the place of AdamW where much trains."""
    eight = config.optimizer is OptimizerName.ADAMW and config.method is Method.FULL
    return [{}, {"optimizer": "adamw_8bit"}] if eight else [{}]


def _typed(config: RunConfig, changes: Changes) -> Changes:
    """The changes as the settings' own types."""
    return {name: type(getattr(config, name))(value) for name, value in changes.items()}


def _smaller(batch: Batch, config: RunConfig, changed: RunConfig) -> Batch:
    """The worst batch with as many fewer rows as the micro batch has; its longest row stays."""
    rows = max(1, batch.rows * changed.micro_batch_size // config.micro_batch_size)

    def share(tokens: int, longest: int) -> int:
        return tokens if rows == batch.rows else min(tokens, max(longest, -(-tokens * rows // batch.rows)))

    return replace(
        batch, rows=rows, tokens=share(batch.tokens, batch.length),
        loss_tokens=share(batch.loss_tokens, min(batch.loss_tokens, batch.target_length or batch.length)),
        target_tokens=share(batch.target_tokens, batch.target_length),
    )  # fmt: skip


def step_seconds(config: RunConfig, shape: ModelShape, card: Card, batch: Batch) -> float:
    """Seconds of an optimizer step, to order configurations by and not to promise: arithmetic, gathering and copying.

    Arithmetic is 2 FLOP a weight and token forward, 4 backward, 2 more where the forward pass is repeated (Kaplan et al. 2020, and
    Korthikanti et al. 2022 for recomputing), at half of the card's peak, less with few tokens; a frozen weight needs no gradient of
    its own. Communication is that of Rajbhandari et al. 2020, section 7.
    """
    rows = config.micro_batch_size * config.gradient_accumulation_steps
    micro = config.gradient_accumulation_steps
    tokens = rows * max(batch.tokens, batch.target_tokens) / max(batch.rows, 1)
    size = shape.parameters
    bytes_ = 2 if resolved(config.precision, card).value != "fp32" else 4
    again = {
        Checkpointing.NONE: 0.0,
        Checkpointing.SELECTIVE: 1.0,
        Checkpointing.FULL: 2.0,
        Checkpointing.OFFLOADED: 2.2,
    }
    work = (6 if config.method is Method.FULL else 4) + again[config.gradient_checkpointing]
    each = tokens / micro
    efficiency = 0.5 * each / (each + 512) * (1.0 if bytes_ == 2 else 0.25)
    seconds = work * size * tokens / (card.flops * efficiency)
    if config.quantized is not Quantization.NONE:
        seconds += micro * 3 * size * 2 / card.memory_rate + 0.25 * seconds  # weights are unpacked in each pass
    trained = size if config.method is Method.FULL else size * 0.005
    many = config.num_processes > 1
    link = card.link_rate if many else float("inf")
    if config.strategy is Strategy.ZERO3 or config.strategy is Strategy.FSDP:
        seconds += 1.3 * micro * 3 * size * bytes_ / link + micro * 0.03
    elif many:
        seconds += (micro if config.strategy.zero_stage == 2 else 1) * 2 * trained * bytes_ / link
    seconds += _copies(config, size * bytes_, trained, micro)
    return seconds


def _copies(config: RunConfig, weights: float, trained: float, micro: int) -> float:
    """Seconds of copying what is offloaded, and of stepping on the host."""
    rate = {Offload.CPU: PCIE, Offload.NVME: NVME}
    seconds, ranks = 0.0, config.num_processes
    whole = config.strategy is Strategy.FSDP and config.offload_param is not Offload.NONE
    if config.offload_param is not Offload.NONE:
        seconds += 2 * micro * weights / rate[config.offload_param] / ranks
    if whole or config.offload_optimizer is not Offload.NONE:
        seconds += trained / HOST_ADAM + 4 * trained / PCIE / ranks
    if config.offload_optimizer is Offload.NVME:
        seconds += 24 * trained / NVME / ranks
    return seconds


def cost(config: RunConfig, changed: RunConfig) -> str:
    """What the changes cost, in a sentence each."""
    told = []
    if changed.gradient_checkpointing is not config.gradient_checkpointing:
        part = {
            Checkpointing.SELECTIVE: "half of the layers' forward passes are",
            Checkpointing.FULL: "every forward pass is",
        }
        what = part.get(changed.gradient_checkpointing, "every forward pass is")
        told.append(f"{what} computed twice")
    if changed.micro_batch_size < config.micro_batch_size:
        times = changed.gradient_accumulation_steps // config.gradient_accumulation_steps
        told.append(
            f"{times} times as many forward passes, each of fewer rows; the global batch stays {changed.global_batch_size}"
        )
    if changed.strategy is not config.strategy and changed.strategy in (Strategy.ZERO3, Strategy.FSDP):
        told.append("weights are gathered for every layer in every pass")
    if Offload.CPU in (changed.offload_param, changed.offload_optimizer):
        told.append("offloaded state is copied over PCIe and stepped on by the CPU")
    if Offload.NVME in (changed.offload_param, changed.offload_optimizer):
        told.append("state is read from and written to the disk in each step")
    if changed.quantized is not config.quantized:
        told.append("frozen weights are rounded to 4 bits, which costs some accuracy, and unpacked in each pass")
    if changed.optimizer is not config.optimizer:
        told.append("the optimizer's state is rounded to 8 bits")
    return "; ".join(told)[:1].upper() + "; ".join(told)[1:] + "." if told else "Nothing: it fits as it is."
