"""The training steps of a run on fake tensors: kernels, strategy, loss, passes, optimizer."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from accelerate.utils.operations import convert_outputs_to_fp32

from training.batches.layout import evaluating
from training.config.choices import Checkpointing, Precision, Strategy
from training.config.run_config import RunConfig
from training.config.sharding import deepspeed_config
from training.models.activation_checkpointing import checkpoint_every_second_layer, saved_activations
from training.models.loading import DTYPES
from training.rules.memory import wants_chunks
from training.simulation.batches import PlacedBatch, SimulationRequest
from training.simulation.cuda_kernels import cuda_kernels, saved_on_host
from training.simulation.fake_optimizer import fake_optimizer
from training.simulation.preference import head_on_cuda, trl_loss
from training.simulation.strategies import Fsdp, SimulatedStrategy, Unsharded, Weights, shards
from training.simulation.timeline import Timeline
from training.simulation.zero import Zero, Zero3, linear_layers
from training.trainer.chunked_loss import ChunkedHead, linear_head

_TEST_TOKENS = 16


def recompute(model: Any, config: RunConfig) -> None:
    """Enables gradient checkpointing as the run does."""
    if config.recomputes:
        # "gradient" before transformers 5.20
        name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
        enable = getattr(model, f"{name}_checkpointing_enable")
        enable(**{f"{name}_checkpointing_kwargs": {"use_reentrant": False}})
    if config.gradient_checkpointing is Checkpointing.SELECTIVE:
        checkpoint_every_second_layer(model)


@contextmanager
def kernels(request: SimulationRequest) -> Iterator[None]:
    """Applies the kernels of the request's device and strategy."""
    with ExitStack() as stack:
        if request.config.strategy is Strategy.ZERO3:
            stack.enter_context(linear_layers())
        if request.device == "cuda":
            stack.enter_context(cuda_kernels(flash=request.flash))
            if request.config.task.traits.has_reference or request.config.task.traits.samples:
                stack.enter_context(head_on_cuda())
        yield


def run_steps(
    model: Any, reference: Any, batch: Any, request: SimulationRequest, live: Timeline, *, last: bool = False
) -> None:
    """Runs the first steps of a run on the `last` rank or the fullest; `batch` makes the inputs of a micro step."""
    config = request.config
    both = [one for one in (model, reference) if one is not None]
    casts = request.precision is not Precision.FP32 and config.strategy.zero_stage is None
    of_trl = None
    if config.task.traits.is_preference or config.task.traits.samples:
        autocast = partial(torch.autocast, "cpu", dtype=DTYPES[request.precision]) if casts else nullcontext
        of_trl = trl_loss(config, model, reference, autocast)
    if casts:
        cast = torch.autocast("cpu", dtype=DTYPES[request.precision])
        for one in both:
            one.forward = convert_outputs_to_fp32(cast(one.forward))
    strategy = simulated_strategy(model, config, request.precision, live, on_cpu=request.device == "cpu", last=last)
    live.enter = strategy.enter
    if shards(config) and config.task.traits.is_language_modeling:
        _test(model, batch, live)
    compute_loss = of_trl or _loss(model, request)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(strategy.on_gradient)
    optimizer = fake_optimizer(model, strategy.parameters, config, live)
    if config.steps_in_backward:
        _free_gradients(optimizer, strategy.parameters, live)
    for step in range(3 if config.num_processes > 1 else 2):
        if placed := _placed(request, first_step=step == 0):
            one_step(compute_loss, [partial(batch, one) for one in placed], strategy, optimizer, request, live)


def simulated_strategy(
    model: Any, config: RunConfig, precision: Precision, live: Timeline, *, on_cpu: bool, last: bool = False
) -> SimulatedStrategy:
    """Returns the simulation of the strategy's part of a rank's memory, of the `last` rank or of the fullest."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    ranks, stage = config.num_processes, config.strategy.zero_stage
    if stage is not None:
        hidden_size = model.config.get_text_config().hidden_size
        settings = (deepspeed_config(config, hidden_size, precision) or {})["zero_optimization"]
        if stage == 3:
            return Zero3(model, trained, live, config, settings, on_cpu=on_cpu)
        return Zero(model, trained, live, ranks if stage else 1, settings, micro_steps(config), last=last)
    if config.strategy is Strategy.FSDP and ranks > 1:
        return Fsdp(model, trained, live, config, precision, on_cpu=on_cpu)
    return Unsharded(model, trained, live, ranks)


def ranks_differ(config: RunConfig) -> bool:
    """True if ranks keep different gradients: with ZeRO-1 and ZeRO-2 those of the weights that their part touches. Then the fullest
    and the last one are simulated, and the larger counts."""
    return config.strategy.zero_stage in (1, 2) and config.num_processes > 1 and not config.method.adapts


def micro_steps(config: RunConfig) -> int:
    """The micro steps that are simulated of each step."""
    return min(2, config.gradient_accumulation_steps)


def _test(model: Any, batch: Any, live: Timeline) -> None:
    """Runs forward passes on a short batch, as a run does before its first step: DeepSpeed's first trace is that of these, and
    FSDP keeps the head that it gathered until a backward pass."""
    live.phase = "forward"
    with evaluating(model):
        for _ in range(2):
            model(**batch(PlacedBatch(True, True, [_TEST_TOKENS, _TEST_TOKENS])))


def _placed(request: SimulationRequest, *, first_step: bool) -> list[SimulationRequest | PlacedBatch]:
    """Returns the batches of a step's micro steps: the first and, if gradients accumulate, a later one."""
    number = micro_steps(request.config)
    if not request.places:
        return [request] * number
    batches = [batch for batch in request.places if batch.first_step is first_step]
    return [*sorted(batches, key=lambda batch: not batch.first_micro)[:number]]


def _loss(model: Any, request: SimulationRequest) -> Callable[[dict[str, Any]], torch.Tensor]:
    """Returns the function that computes the model's own loss of a batch: in chunks where the run does."""
    forward = model.__call__
    head = linear_head(model) if request.config.task.traits.chunks_loss else None
    if head is None or not wants_chunks(request.config, head.out_features):
        return lambda inputs: forward(**inputs)[0]
    chunked = ChunkedHead(model)
    chunked.place()
    return lambda inputs: chunked.outputs(forward, inputs)["logits"] / len(request.lengths)


def _free_gradients(optimizer: Any, weights: Weights, live: Timeline) -> None:
    """Takes the optimizer's step for each weight in the backward pass (training/trainer/optimizers.py)."""

    def step(weight: torch.Tensor) -> None:
        live.phase, live.kind = "optimizer", "optimizer"
        optimizer.step()
        weight.grad, live.phase = None, "backward"

    for weight in weights:
        weight.register_post_accumulate_grad_hook(step)  # type: ignore[no-untyped-call]


def one_step(
    compute_loss: Any, batches: Any, strategy: Any, optimizer: Any, request: SimulationRequest, live: Timeline
) -> None:
    """Runs forward and backward passes, gradient clipping and the optimizer's step, as the Trainer does."""
    config = request.config
    live.phase, live.kind = "load", "other"
    micro_batches = [batch() for batch in (*batches, batches[-1])]  # one is read ahead
    for inputs in micro_batches[:-1]:
        live.phase = "forward"
        with _saved_activations(request, strategy.parameters if request.config.offload_activations else ()):
            loss = compute_loss(inputs)
        live.phase = "backward"
        loss.backward()
        del loss
        strategy.on_backward_end()
    live.phase, live.kind = "optimizer", "other"
    strategy.on_step_begin()
    if config.max_grad_norm:
        torch.nn.utils.clip_grad_norm_(strategy.parameters, config.max_grad_norm)
    live.kind = "optimizer"
    optimizer.step()
    strategy.on_step_end()


def _saved_activations(request: SimulationRequest, weights: Iterable[torch.Tensor]) -> AbstractContextManager[object]:
    kind = request.config.gradient_checkpointing
    if request.config.offload_activations and request.device == "cuda":
        return saved_on_host(weights)
    if kind is Checkpointing.OFFLOADED and request.device == "cuda":
        return saved_on_host()
    return saved_activations(kind, torch.device("cpu"))
