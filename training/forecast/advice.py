"""Finds settings with which a run fits: forecasts every candidate and orders those that fit by estimated speed. No torch.

The candidates combine gradient checkpointing, ZeRO-2, optimizer offload, ZeRO-3, parameter offload, NVMe, a smaller micro batch
with more accumulation, 4-bit frozen weights, and 8-bit optimizer state. The global batch size stays the same. `strategy_table`
forecasts every strategy with every method.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from training.config.choices import Checkpointing, ChunkedLoss, Method, Offload, Quantization, Strategy
from training.config.fields import parse
from training.config.optimizer_name import OptimizerName
from training.config.run_config import RunConfig
from training.forecast.forecast import SLACK, Forecast, estimate
from training.forecast.formula.activations import Batch
from training.forecast.gpus import Card
from training.forecast.roofline import step_seconds
from training.model_info.shape import ModelShape
from training.rules import check, problems
from training.rules.memory import LEAST_VOCABULARY

COUNT = 4

Changes = dict[str, Any]
_NO_OFFLOAD = {"offload_optimizer": "none", "offload_param": "none"}
_ONE_PROCESS = ("single", "zero2 optimizer", "zero3 optimizer param", "zero3 nvme")
_SEVERAL_PROCESSES = (
    "ddp", "zero2", "zero2 optimizer", "zero3", "zero3 param", "zero3 optimizer param", "zero3 nvme", "fsdp", "fsdp param",
)  # fmt: skip


@dataclass(frozen=True)
class Advice:
    """A candidate: `changes` to the settings, its forecast, its speed relative to the fastest candidate (which may not fit),
    and its cost as text."""

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
    slack: float = SLACK,
    count: int = COUNT,
) -> list[Advice]:
    """The fastest candidates that fit, at most `count`; of equally fast ones, that with the fewest changes.

    `batch` is the worst micro batch of `config`. Empty if no candidate fits.
    """
    machine = card.machine(config.num_processes, config.num_machines)
    tried: list[tuple[float, Advice]] = []
    fastest = float("inf")
    for changes in _candidates(config, shape):
        changed = config.model_copy(
            update={name: type(getattr(config, name))(value) for name, value in changes.items()}
        )
        if "quantization" in changes and not _packing_saves(config, changed, shape, card, batch):
            continue
        if problems(changed, machine):
            continue
        smaller = _smaller(batch, config, changed)
        expected = estimate(changed, shape, card=card, batch=smaller, host_limit_bytes=host_limit_bytes, slack=slack)
        seconds = step_seconds(changed, shape, card, batch)
        fastest = min(fastest, seconds)
        if expected.fits:
            tried.append((seconds, Advice(changes, expected, 0.0, cost(config, changed))))
    tried.sort(key=lambda timed: (round(timed[0], 6), len(timed[1].changes)))
    return [replace(advice, relative_speed=fastest / seconds) for seconds, advice in _distinct(tried)][:count]


def _packing_saves(config: RunConfig, changed: RunConfig, shape: ModelShape, card: Card, batch: Batch) -> bool:
    """True if 4-bit weights take less memory than the same candidate without: not of models with most weights elsewhere."""
    unpacked = changed.model_copy(update={"method": config.method, "quantization": config.quantization})
    smaller = _smaller(batch, config, changed)
    after, before = (estimate(one, shape, card=card, batch=smaller).peak_bytes for one in (changed, unpacked))
    return after < before


def _distinct(tried: list[tuple[float, Advice]]) -> Iterator[tuple[float, Advice]]:
    """Yields only the fastest candidate of each strategy and method, so that the list shows different ones."""
    keys = set()
    for seconds, advice in tried:
        names = ("strategy", "offload_optimizer", "offload_param", "quantization", "optimizer")
        key = tuple(advice.changes.get(name) for name in names)
        if key not in keys:
            keys.add(key)
            yield seconds, advice


def _candidates(config: RunConfig, shape: ModelShape) -> Iterator[Changes]:
    """Yields the changes of each candidate, the unchanged configuration first."""
    usual = _SEVERAL_PROCESSES if config.num_processes > 1 else _ONE_PROCESS
    strategies = [name for name in usual if config.nvme_path or "nvme" not in name]
    for strategy, loss, recomputed, batch, quantized, state in product(
        strategies, _losses(config, shape), _recomputed(config), _batches(config), _quantized(config), _states(config)
    ):
        changes = _strategy(strategy) | loss | recomputed | batch | quantized | state
        yield {name: value for name, value in changes.items() if str(getattr(config, name)) != str(value)}


def _strategy(words: str) -> Changes:
    strategy, *offloads = words.split()
    changes: Changes = {"strategy": strategy} | _NO_OFFLOAD
    if "nvme" in offloads:
        return changes | {"offload_optimizer": "nvme", "offload_param": "nvme"}
    return changes | {f"offload_{name}": "cpu" for name in offloads}


def _losses(config: RunConfig, shape: ModelShape) -> list[Changes]:
    """No change, and the loss in chunks where it was turned off: it costs nothing."""
    turned_off = (
        config.chunked_loss is ChunkedLoss.OFF and config.task.traits.chunks_loss and shape.vocab >= LEAST_VOCABULARY
    )
    return [{}, {"chunked_loss": "auto"}] if turned_off else [{}]


def _recomputed(config: RunConfig) -> list[Changes]:
    """The gradient checkpointing of the configuration, and those that save more memory; and offloaded activations."""
    order = [Checkpointing.NONE, Checkpointing.SELECTIVE, Checkpointing.FULL, Checkpointing.OFFLOADED]
    kinds = [{"gradient_checkpointing": choice.value} for choice in order[order.index(config.gradient_checkpointing) :]]
    return [*kinds, {"offload_activations": True}]


def _batches(config: RunConfig) -> list[Changes]:
    """The micro batch size, and smaller ones with the same global batch size."""
    rows, size = config.micro_batch_size * config.gradient_accumulation_steps, config.micro_batch_size
    least = config.task.traits.least_micro_batch
    sizes = [{"micro_batch_size": size, "gradient_accumulation_steps": config.gradient_accumulation_steps}]
    while (size := size // 2) >= least:
        if rows % size == 0:
            sizes.append({"micro_batch_size": size, "gradient_accumulation_steps": rows // size})
    return sizes


def _quantized(config: RunConfig) -> list[Changes]:
    """No change, and 4-bit frozen weights; experts stored as one tensor are not packed."""
    if config.method is Method.LORA and config.quantized is Quantization.NONE:
        return [{}, {"method": "qlora", "quantization": "4bit"}]
    return [{}]


def _states(config: RunConfig) -> list[Changes]:
    """No change, and for full fine-tuning the step in the backward pass where nothing is clipped, and 8-bit AdamW."""
    has_8_bit = config.optimizer is OptimizerName.ADAMW and config.method is Method.FULL
    frees = config.method is Method.FULL and not config.max_grad_norm
    freed: list[Changes] = [{"optimizer_in_backward": True}] if frees else []
    return [{}, *freed, {"optimizer": "adamw_8bit"}] if has_8_bit else [{}, *freed]


def _smaller(batch: Batch, config: RunConfig, changed: RunConfig) -> Batch:
    """The worst batch with rows in proportion to the smaller micro batch; it keeps its longest row."""
    rows = max(1, batch.rows * changed.micro_batch_size // config.micro_batch_size)

    def share(tokens: int, longest: int) -> int:
        return tokens if rows == batch.rows else min(tokens, max(longest, -(-tokens * rows // batch.rows)))

    return replace(
        batch, rows=rows, tokens=share(batch.tokens, batch.length),
        loss_tokens=share(batch.loss_tokens, min(batch.loss_tokens, batch.target_length or batch.length)),
        labeled=share(batch.labeled, min(batch.labeled, batch.target_length or batch.length)),
        target_tokens=share(batch.target_tokens, batch.target_length),
    )  # fmt: skip


def cost(config: RunConfig, changed: RunConfig) -> str:
    """The cost of the changes as text."""
    costs = []
    if changed.gradient_checkpointing is not config.gradient_checkpointing:
        half = changed.gradient_checkpointing is Checkpointing.SELECTIVE
        costs.append(f"the backward pass recomputes {'every second layer' if half else 'every layer'}")
    if changed.micro_batch_size < config.micro_batch_size:
        times = changed.gradient_accumulation_steps // config.gradient_accumulation_steps
        costs.append(
            f"{times} times as many forward passes with fewer rows each; the global batch size stays {changed.global_batch_size}"
        )
    if changed.strategy is not config.strategy and changed.strategy in (Strategy.ZERO3, Strategy.FSDP):
        costs.append("each layer's weights are gathered in every pass")
    offloads_all = changed.strategy is Strategy.FSDP and changed.offload_param is Offload.CPU
    if changed.offload_optimizer is Offload.CPU or offloads_all:
        costs.append("optimizer state lives in host RAM, and the CPU runs the optimizer step")
    if changed.offload_param is Offload.CPU:
        costs.append("parameters live in host RAM and are copied to the GPU in every pass")
    if Offload.NVME in (changed.offload_param, changed.offload_optimizer):
        costs.append("every step reads and writes the offloaded state on disk")
    if changed.quantized is not config.quantized:
        costs.append("base weights are quantized to 4 bits (small accuracy loss) and dequantized in every pass")
    if changed.offload_activations and not config.offload_activations:
        costs.append("activations are copied to host RAM and back in every pass")
    if changed.chunked_loss is not config.chunked_loss:
        costs.append("the loss is computed in chunks of tokens, at the same speed")
    if changed.optimizer_in_backward and not config.optimizer_in_backward:
        costs.append("each weight is updated in the backward pass, with the same result")
    if changed.optimizer is not config.optimizer:
        costs.append("optimizer state is quantized to 8 bits")
    text = "; ".join(costs)
    return f"{text[:1].upper()}{text[1:]}." if costs else "None: it fits without changes."


@dataclass(frozen=True)
class Combination:
    """A strategy with a method: the changed settings, and the forecast or the reason why it is refused."""

    strategy: str
    method: str
    changes: Changes
    forecast: Forecast | None
    refused: str = ""


_STRATEGIES = {
    "one device": ("single", "none", "none"),
    "DDP": ("ddp", "none", "none"),
    "ZeRO-1": ("zero1", "none", "none"),
    "ZeRO-2": ("zero2", "none", "none"),
    "ZeRO-2 + optimizer offload": ("zero2", "cpu", "none"),
    "ZeRO-3": ("zero3", "none", "none"),
    "ZeRO-3 + offload": ("zero3", "cpu", "cpu"),
    "FSDP": ("fsdp", "none", "none"),
    "FSDP + offload": ("fsdp", "none", "cpu"),
}
_METHODS = {
    "full": {"method": "full", "quantization": "none"},
    "LoRA": {"method": "lora", "quantization": "none"},
    "QLoRA 8-bit": {"method": "qlora", "quantization": "8bit"},
    "QLoRA 4-bit": {"method": "qlora", "quantization": "4bit"},
}


def strategy_table(
    config: RunConfig, shape: ModelShape, card: Card, *, batch: Batch, host_bytes: int | None = None
) -> list[Combination]:
    """Every strategy with every method, with the other settings of the configuration."""
    combinations = []
    for label, (strategy, optimizer, parameters) in _STRATEGIES.items():
        for method, settings in _METHODS.items():
            alone = strategy == "single"
            count, machines = (1, 1) if alone else (config.num_processes, config.num_machines)
            changes: Changes = {"strategy": strategy, "num_processes": count, "num_machines": machines, **settings}
            changes |= {"offload_optimizer": optimizer, "offload_param": parameters}
            tried = parse(config.model_dump(mode="json") | changes)
            conflicts = check(tried, card.machine(count, machines))
            refused = next((conflict.reason for conflict in conflicts if conflict.blocking), "")
            expected = None if refused else estimate(tried, shape, card=card, batch=batch, host_limit_bytes=host_bytes)
            combinations.append(Combination(label, method, changes, expected, refused))
    return combinations
