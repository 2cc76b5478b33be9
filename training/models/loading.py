"""Loads the tokenizer and the model, quantized, frozen and with the adapter of the method; and refuses weights that are not finite,
whose answers mean nothing."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from transformers import (
    AutoConfig,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from training.chat.tokenizer import load
from training.config.choices import LoraInit, Method, Precision, Quantization, Strategy
from training.config.name_values import as_names
from training.config.optimizer_name import OptimizerName
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import UserError
from training.model_info.config_json import CONFIG_FILE, HIDDEN, positive, read_config, text_config
from training.models import placement
from training.models.adapters import add_adapter, cast_fixed, check_modules
from training.models.attention import attend_without_groups, has_flash_kernels, implementation
from training.models.freezing import freeze_modules, modules_without_text, train_last_layers
from training.models.lora_init import apply_loftq, continue_adapter
from training.tables import only

DTYPES = only({Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16, Precision.FP32: torch.float32})


def load_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """Returns the model's tokenizer. Without a padding token it pads with the end token, since padding is masked.

    Raises:
        UserError: there is no tokenizer, or it has neither a padding nor an end token.
    """
    tokenizer = load(config.model, config.revision, config.chat_template)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            message = "has a tokenizer with neither a padding nor an end token."
            raise UserError("model", config.model, message, "Set pad_token in tokenizer_config.json.")
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def load_trainable(
    config: RunConfig,
    precision: Precision,
    tokenizer: PreTrainedTokenizerBase,
    classes: Sequence[str] = (),
    initial: Path | None = None,
    tell: Callable[[str], object] = lambda _: None,
) -> PreTrainedModel | PeftModel:
    """Returns the model as its method trains it; `classes` are those of a classifier, `initial` as in `add_adapter`. `tell`
    receives a sentence if its embeddings are resized.

    Raises:
        UserError: as `load_model` and `apply_method`.
    """
    dtype = weights_dtype(config, precision)
    model = load_model(config, dtype, len(tokenizer), classes, compute=DTYPES[precision], trains=True, tell=tell)
    if not has_flash_kernels(precision):
        attend_without_groups(model, config)
    if not config.task.traits.generates:  # the score is that of the last token that is not padding
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    unused = modules_without_text(model)
    # Not PEFT's prepare_model_for_kbit_training: it casts everything that is not quantized (embeddings, head, fused experts)
    # to fp32, which takes more memory than LoRA on the same model.
    adapted: Any = apply_method(model, config, initial)
    if not config.method.adapts:
        freeze_modules(model, unused)
        return model
    if config.init_adapter:
        continue_adapter(adapted, Path(config.init_adapter))
    if config.strategy is Strategy.ZERO3:
        _declare_reads_of_dora(adapted)
    cast_fixed(adapted, config, DTYPES[precision])
    freeze_modules(adapted, unused)
    if config.method.is_lora and config.lora_init is LoraInit.LOFTQ:
        unquantized = config.model_copy(update={"method": Method.LORA, "quantization": Quantization.NONE})
        apply_loftq(adapted, load_model(unquantized, DTYPES[precision], len(tokenizer), classes))
    return adapted


def apply_method(model: PreTrainedModel, config: RunConfig, initial: Path | None = None) -> PreTrainedModel | PeftModel:
    """Returns the model with its method's adapter, or itself, with all but the last layers frozen if only these train.

    Raises:
        UserError: as `add_adapter` and `train_last_layers`.
    """
    if config.method.adapts:
        return add_adapter(model, config, peft_task(config.task), initial)
    if config.trainable_layers:
        check_modules(model, config.modules_to_save)
        train_last_layers(model, config.trainable_layers, as_names(config.modules_to_save))
    return model


def _declare_reads_of_dora(model: PeftModel) -> None:
    """Tells ZeRO-3 that DoRA's modules read the shape of a matrix of their LoRA layer, which must be whole then.

    DeepSpeed finds that out in a forward pass only, not where activation checkpointing computes it again.
    """
    from deepspeed.runtime.zero import register_external_parameter

    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            for adapter, dora in layer.lora_magnitude_vector.items():
                if adapter in layer.lora_A:
                    register_external_parameter(dora, layer.lora_A[adapter].weight)


def model_class(task: Task) -> Any:
    """Returns the transformers class that loads the model of a task."""
    return getattr(transformers, task.traits.kind.auto_class)


def peft_task(task: Task) -> str:
    """Returns PEFT's name of a task."""
    return task.traits.kind.peft


def load_model(
    config: RunConfig,
    dtype: torch.dtype,
    tokens: int = 0,
    classes: Sequence[str] = (),
    compute: torch.dtype | None = None,
    *,
    trains: bool = False,
    tell: Callable[[str], object] = lambda _: None,
) -> PreTrainedModel:
    """Loads the model of the task with weights of `dtype`, from safetensors only and without remote code.

    Quantized weights are multiplied in `compute` (default: `dtype`). If the tokenizer has more `tokens` than the model has
    embeddings, the embeddings are resized, and `tell` receives a sentence. A model that `trains` is read directly onto the GPU
    where it stays.

    Raises:
        UserError: the folder or hub id has no loadable model.
    """

    def read_onto(device: placement.DeviceMap) -> PreTrainedModel:
        model: PreTrainedModel = model_class(config.task).from_pretrained(
            config.model,
            **head_arguments(config.task, classes),
            revision=config.revision or "main",
            **_attention(config),
            dtype=dtype,
            device_map=device,
            quantization_config=quantization(config, dtype, compute or dtype),
            trust_remote_code=False,
            use_safetensors=True,
        )
        if device == placement.NO_VALUES:
            placement.reserve(model)
        if tokens > (known := model.get_input_embeddings().num_embeddings):
            tell(
                f"Embeddings resized from {known:,} to the tokenizer's {tokens:,} tokens. The new rows begin near the mean of the "
                "others; an adapter trains them only if it trains whole embeddings (modules_to_save) or these tokens."
            )
            model.resize_token_embeddings(tokens, mean_resizing=device != placement.NO_VALUES)
        return model

    try:
        model = placement.read(config, read_onto, trains=trains)
    except UserError:
        raise
    except (OSError, ValueError) as error:
        if "attention implementation" in str(error):
            message = f"is not supported by this model: {error}"
            raise UserError("attention", config.attention.value, message, "Set attention to auto.") from error
        fix = "Set model to a folder or hub id of a transformers model."
        raise UserError("model", config.model, f"has no model that Lathe can load: {error}", fix) from error
    keep_four_bit_format(model)
    model.config.use_cache = False
    return model


def keep_four_bit_format(model: Any) -> None:
    """Keeps 4-bit weights on CPU in the format in which they were trained.

    In an evaluation on a CPU with AVX512-BF16, bitsandbytes repacks them for a kernel that computes in bfloat16: training cannot
    continue with them, and the logits differ from those of training by some hundredths.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False


def _attention(config: RunConfig) -> dict[str, str]:
    classes = model_class(config.task)._model_mapping
    settings = AutoConfig.from_pretrained(config.model, revision=config.revision or "main", trust_remote_code=False)
    name = implementation(config, classes[type(settings)]) if type(settings) in classes else None
    return {"attn_implementation": name} if name else {}


def head_arguments(task: Task, classes: Sequence[str]) -> dict[str, Any]:
    """Returns the config arguments of a scoring model's head: one output for a reward, one per class for a classifier."""
    if task.traits.scores:
        return {"num_labels": 1}
    if task.traits.has_classes and classes:
        names = dict(enumerate(classes))
        return {"num_labels": len(names), "id2label": names, "label2id": {name: key for key, name in names.items()}}
    return {}


def quantization(config: RunConfig, dtype: torch.dtype, compute: torch.dtype) -> BitsAndBytesConfig | None:
    """Returns bitsandbytes' configuration for a model in `dtype` that computes in `compute`; None without quantization."""
    match config.quantized:
        case Quantization.NONE:
            return None
        case Quantization.INT8:
            return BitsAndBytesConfig(load_in_8bit=True)
        case Quantization.NF4:
            # ZeRO-3 and FSDP shard tensors of the model's own dtype; each element then holds several weights.
            storage = dtype if config.strategy in (Strategy.ZERO3, Strategy.FSDP) else torch.uint8
            return BitsAndBytesConfig(
                load_in_4bit=True,
                bnb_4bit_quant_type="nf4",
                bnb_4bit_use_double_quant=config.double_quantization,
                bnb_4bit_compute_dtype=compute,
                bnb_4bit_quant_storage=storage,
            )


def weights_dtype(config: RunConfig, precision: Precision) -> torch.dtype:
    """Returns the dtype of the model's weights.

    Frozen weights (LoRA) use the compute dtype. In full fine-tuning weights stay in fp32 under autocast, since bf16 loses an
    update of 1e-5 of a weight; DeepSpeed keeps an fp32 master copy itself.
    """
    if config.weights_precision is not Precision.AUTO and config.strategy.zero_stage is None:
        return DTYPES[config.weights_precision]
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION:
        return DTYPES[precision]  # it compensates for rounding with Kahan summation
    if config.method is Method.FULL and config.strategy.zero_stage is None:
        return torch.float32
    return DTYPES[precision]


def parameter_counts(model: torch.nn.Module) -> tuple[int, int]:
    """Returns the numbers of (trainable, total) parameter elements, in full even where ZeRO-3 shards them."""
    sizes = [(parameter.requires_grad, _elements(parameter)) for parameter in model.parameters()]
    return sum(size for trains, size in sizes if trains), sum(size for _, size in sizes)


def _elements(parameter: torch.nn.Parameter) -> int:
    count = int(getattr(parameter, "ds_numel", parameter.numel()))
    # Each byte holds two weights. Compared by name, since importing bitsandbytes takes a second and few runs need it.
    packed = type(parameter).__name__ == "Params4bit"
    return 2 * count * parameter.element_size() if packed else count


def check_finite(model: torch.nn.Module, field: str, origin: str, within: str = "") -> None:
    """Checks the floating-point weights of a model whose names contain `within`; the error has their `field` and `origin`.

    Raises:
        UserError: a weight is NaN or infinite.
    """
    _refuse_infinite(((name, weight) for name, weight in model.named_parameters() if within in name), field, origin)


def check_files_finite(folder: Path, field: str, origin: str) -> None:
    """As `check_finite`, for the weights in a folder's files, which another program loads."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as stored:
            _refuse_infinite(((name, stored.get_tensor(name)) for name in stored.keys()), field, origin)  # noqa: SIM118


@torch.no_grad()
def _refuse_infinite(named: Iterable[tuple[str, torch.Tensor]], field: str, origin: str) -> None:
    finite = {name: bool(torch.isfinite(weight).all()) for name, weight in named if weight.is_floating_point()}
    if broken := [name for name, is_finite in finite.items() if not is_finite]:
        message = f"has NaN or infinity in {len(broken)} of {len(finite)} weights, such as {broken[0]}."
        raise UserError(field, origin, message, "Use an earlier checkpoint, or train again with a lower learning rate.")


def hidden_size_of(folder: str) -> int | None:
    """Returns the hidden size in a local folder's config.json, or None."""
    if not (Path(folder) / CONFIG_FILE).is_file():
        return None
    return positive(text_config(read_config(folder)), HIDDEN)
