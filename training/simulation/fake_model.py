"""Builds a run's model from fake tensors, which have shapes and dtypes but no memory."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import patch

import torch
from peft.tuners.lora import dora
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import PreTrainedModel
from transformers.quantizers.auto import AutoHfQuantizer

from training.config.choices import Attention, LoraInit, Precision
from training.config.run_config import RunConfig
from training.models.adapters import cast_fixed
from training.models.loading import DTYPES, apply_method, quantization, weights_dtype
from training.models.target_modules import empty_model
from training.simulation.strategies import shards

_BLOCK = 64  # 4-bit weights that share a scale
_INDEXED = (
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
)
_SCALES = 256  # scales that share a scale, with double quantization


def meta_trainable(config: RunConfig, precision: Precision, tokens: int = 0, classes: Sequence[str] = ()) -> Any:
    """Builds the model as `load_trainable` does, on torch's meta device. Raises UserError as `empty_model` and `apply_method`."""
    dtype = weights_dtype(config, precision)
    model = _empty(config, dtype, classes)
    quantized = quantization(config, dtype, DTYPES[precision])
    if quantized:
        quantized.llm_int8_threshold = 0.0  # finding outliers needs values
        quantized.bnb_4bit_quant_storage = torch.uint8  # any other dtype takes the same bytes
        quantizer = AutoHfQuantizer.from_config(quantized, pre_quantized=False)
        quantizer.preprocess_model(model=model, dtype=dtype, device_map={"": "cpu"})
        quantizer.postprocess_model(model)
    if tokens > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(tokens, mean_resizing=False)
    model.config.use_cache = False
    if not config.task.traits.generates:
        model.config.get_text_config().pad_token_id = 0
    if config.method.adapts:
        plain = config.model_copy(update={"lora_init": LoraInit.DEFAULT})
        with _dora_without_values():
            adapted = apply_method(model, plain)
        cast_fixed(adapted, config, DTYPES[precision])
        for name, weight in adapted.named_parameters():
            if ".ranknum." in name:  # an AdaLoRA's rank, which trains only on the meta device
                weight.requires_grad_(False)
        return _cast_as_engine(adapted, config, precision)
    return _cast_as_engine(apply_method(model, config), config, precision)


@contextmanager
def _dora_without_values() -> Iterator[None]:
    """Lets DoRA begin with 4-bit weights on the meta device, which it cannot copy and unpack to compute their norms."""
    unpack = dora.dequantize_module_weight

    def unpacked(module: Any) -> torch.Tensor:
        if type(module.weight).__name__ != "Params4bit":
            return cast(torch.Tensor, unpack(module))
        return torch.empty(module.out_features, module.in_features, device="meta")

    with (
        patch.object(dora, "deepcopy", lambda module: module),
        patch.object(dora, "dequantize_module_weight", unpacked),
    ):
        yield


def _empty(config: RunConfig, dtype: torch.dtype, classes: Sequence[str] = ()) -> Any:
    """Builds the model on the meta device with its attention; other kernels than eager ones save as sdpa does."""
    model = empty_model(config, dtype=dtype, classes=classes)
    if config.attention is Attention.EAGER:
        model.set_attn_implementation("eager")
    return model


def meta_reference(config: RunConfig, precision: Precision, tokens: int = 0) -> Any:
    """Builds the reference model of a preference task, whose weights are frozen, on torch's meta device. Raises UserError as
    `empty_model`."""
    model = _empty(config, weights_dtype(config, precision))
    if tokens > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(tokens, mean_resizing=False)
    return _cast_as_engine(model, config, precision).requires_grad_(False)


def _cast_as_engine(model: Any, config: RunConfig, precision: Precision) -> Any:
    """In 16-bit precision DeepSpeed casts all unquantized weights and buffers to 16 bits, and FSDP gathers weights in 16 bits."""
    if precision is not Precision.FP32 and (config.strategy.zero_stage is not None or shards(config)):
        for tensor in (*model.parameters(), *([] if shards(config) else model.buffers())):
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(DTYPES[precision])
    return model


def make_fake(model: torch.nn.Module) -> None:
    """Replaces a model's parameters and buffers by fake tensors; tied ones stay tied. Call it within a FakeTensorMode."""
    fakes: dict[int, Any] = {}
    for module in model.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    if id(tensor) not in fakes:
                        fakes[id(tensor)] = _fake(tensor, module)
                    tensors[name] = fakes[id(tensor)]


def _fake(tensor: torch.Tensor, module: torch.nn.Module) -> torch.Tensor:
    kind = type(tensor).__name__
    if kind == "Params4bit":
        return _fake_4bit(tensor, module)
    if kind == "Int8Params":
        return _fake_8bit(tensor, module)
    if isinstance(tensor, FakeTensor):
        return tensor
    fake = torch.empty(tensor.shape, dtype=tensor.dtype)
    return torch.nn.Parameter(fake, tensor.requires_grad) if isinstance(tensor, torch.nn.Parameter) else fake


def _fake_4bit(tensor: Any, module: Any) -> torch.Tensor:
    """Returns bitsandbytes' 4-bit parameter: two weights per byte, one scale per block."""
    from bitsandbytes.functional import QuantState
    from bitsandbytes.nn.modules import Params4bit

    quantized: Any = QuantState
    scales, inner = -(-tensor.numel() // _BLOCK), None
    if tensor.compress_statistics:
        inner = quantized(torch.empty(-(-scales // _SCALES)), code=torch.empty(256), blocksize=_SCALES)
        inner.dtype = torch.float32
    state = quantized(
        torch.empty(scales, dtype=torch.uint8 if inner else torch.float32),
        shape=tensor.shape,
        code=torch.empty(16),
        blocksize=_BLOCK,
        quant_type=tensor.quant_type,
        dtype=module.compute_dtype,
        offset=torch.empty(()) if inner else None,
        state2=inner,
    )
    packed = torch.empty((tensor.numel() // 2 // tensor.quant_storage.itemsize, 1), dtype=tensor.quant_storage)
    module.quant_state = state
    module.support_avx512bf16_for_cpu = False
    return Params4bit(packed, False, quant_state=state, quant_type=tensor.quant_type, bnb_quantized=True, module=module)


def _fake_8bit(tensor: Any, module: torch.nn.Module) -> torch.Tensor:
    """Returns bitsandbytes' 8-bit parameter: one byte per weight, one scale per output.

    Its class cannot wrap a fake tensor, so it has the shape of the weights and one element, and a buffer has their bytes.
    """
    from bitsandbytes.nn.modules import Int8Params

    fake = Int8Params(torch.empty(1, dtype=torch.int8).expand(tensor.shape), requires_grad=False)
    fake.CB, fake.SCB = torch.empty(tensor.shape).to(torch.int8), torch.empty(tensor.shape[0])
    module.register_buffer("codes", fake.CB)
    return fake


class RealIntegers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Computes integers (positions, masks, labels) for real inside a FakeTensorMode, since branches and shapes depend on them.

    A choice by fake values, such as the experts of a token, takes each option equally often.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        real = not any(isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors)
        if real and (tensors or _makes_integers(func, args, kwargs)):
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is torch.ops.aten._grouped_mm.default:
            return _grouped(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:  # a metric of a loss
            return 1.0 if args[0].is_floating_point() else 1
        if func in _INDEXED:
            args = (args[0], [place for index in args[1] for place in _places(index)], *args[2:])
        result = func(*args, **kwargs)
        return (result[0], _even_choice(result[1], args)) if func is torch.ops.aten.topk.default else result


def _places(index: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
    """Instead of a real mask the places where it is True, one index for each of its dimensions: their number decides a shape."""
    if index is None or index.dtype is not torch.bool or isinstance(index, FakeTensor):
        return (index,)
    with unset_fake_temporarily():
        return index.nonzero(as_tuple=True)


def _makes_integers(func: Any, args: Any, kwargs: dict[str, Any]) -> bool:
    dtype = kwargs.get("dtype")
    if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "meta":
        return False
    if dtype is None and func is torch.ops.aten.full.default:
        return isinstance(args[1], int)
    if dtype is None:
        return "arange" in str(func) and all(isinstance(argument, int) for argument in args)
    return not dtype.is_floating_point


def _grouped(left: torch.Tensor, right: torch.Tensor, offsets: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """Returns the shape of torch's grouped matrix product, for fp32 too; torch's own fake kernel supports only bf16."""
    groups = [] if left.ndim != right.ndim else [len(offsets)]
    return left.new_empty(*groups, left.shape[-2], right.shape[-1])


def _even_choice(chosen: torch.Tensor, args: Any) -> torch.Tensor:
    choices = args[0].shape[args[2] if len(args) > 2 else -1]
    with unset_fake_temporarily():
        even: torch.Tensor = (torch.arange(chosen.numel()) % choices).reshape(chosen.shape)
    return even


def head_names(model: PreTrainedModel) -> set[str]:
    """Returns the names of the modules that compute logits or scores, and of the model that computes the loss."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    heads = {
        id(base),
        id(base.get_output_embeddings()),
        *(id(getattr(base, name, None)) for name in ("score", "classifier")),
    }
    return {name for name, module in model.named_modules() if id(module) in heads - {id(None)}}
