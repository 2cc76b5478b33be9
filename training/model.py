"""Loading the tokenizer and the model, as its method trains it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    BitsAndBytesConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from training.adapters import add_adapter, check_modules
from training.attention import implementation
from training.config import LoraInit, Method, OptimizerName, Precision, Quantization, RunConfig, Strategy, Task
from training.failure import UserError
from training.freezing import beside_text, freeze_beside_text, train_last_layers
from training.lora_init import fit_quantized
from training.methods import as_names
from training.tokenizer import load

DTYPES = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16, Precision.FP32: torch.float32}


def load_tokenizer(config: RunConfig) -> PreTrainedTokenizerBase:
    """The model's tokenizer, with a padding token (padding is masked, so the end token serves where there is none).

    Raises:
        UserError: there is no tokenizer, or it has neither a padding nor an end token.
    """
    tokenizer = load(config.model, config.revision)
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token is None:
            raise UserError(
                "model",
                config.model,
                "has a tokenizer without padding and end tokens.",
                "Set pad_token in tokenizer_config.json.",
            )
        tokenizer.pad_token = tokenizer.eos_token
    tokenizer.padding_side = "right"
    return tokenizer


def load_trainable(
    config: RunConfig,
    precision: Precision,
    tokenizer: PreTrainedTokenizerBase,
    classes: Sequence[str] = (),
    initial: Path | None = None,
) -> PreTrainedModel | PeftModel:
    """The model as its method trains it; `classes` are those of a classifier, `initial` is as `add_adapter` takes it.

    Raises:
        UserError: as `load_model`, `add_adapter` and `train_last_layers`.
    """
    dtype = weights_dtype(config, precision)
    model = load_model(config, dtype, len(tokenizer), classes, compute=DTYPES[precision])
    if not config.task.generates:  # the score is read off the last token that is no padding
        model.config.get_text_config().pad_token_id = tokenizer.pad_token_id
    unused = beside_text(model)
    if not config.method.adapts:
        if config.trainable_layers:
            check_modules(model, config.modules_to_save)
            train_last_layers(model, config.trainable_layers, as_names(config.modules_to_save or ""))
        freeze_beside_text(model, unused)
        return model
    # PEFT's prepare_model_for_kbit_training is left out: it turns what is not quantized, such as embeddings, the head and
    # fused experts, to fp32, which takes more memory than LoRA on the same model does.
    adapted = add_adapter(model, config, peft_task(config.task), initial)
    freeze_beside_text(adapted, unused)
    if config.method.is_lora and config.lora_init is LoraInit.LOFTQ:
        unquantized = config.model_copy(update={"method": Method.LORA, "quantization": Quantization.NONE})
        fit_quantized(adapted, load_model(unquantized, DTYPES[precision], len(tokenizer), classes))
    return adapted


def model_class(task: Task) -> Any:
    """transformers' class that loads the model of a task."""
    match task:
        case Task.SEQ2SEQ:
            return AutoModelForSeq2SeqLM
        case Task.CLASSIFICATION | Task.REWARD:
            return AutoModelForSequenceClassification
        case _:
            return AutoModelForCausalLM


def peft_task(task: Task) -> str:
    """PEFT's name of a task."""
    names = {AutoModelForSeq2SeqLM: "SEQ_2_SEQ_LM", AutoModelForSequenceClassification: "SEQ_CLS"}
    return names.get(model_class(task), "CAUSAL_LM")


def load_model(
    config: RunConfig,
    dtype: torch.dtype,
    tokens: int = 0,
    classes: Sequence[str] = (),
    compute: torch.dtype | None = None,
) -> PreTrainedModel:
    """The model of the task with weights of `dtype`, from safetensors only and without running any code of its own.

    Quantized weights are multiplied in `compute`, in `dtype` where it is not given.

    Where its tokenizer has more `tokens` than the model has embeddings, as when some were added, it gets embeddings for them.

    Raises:
        UserError: the folder or hub id holds no model that can be loaded.
    """
    try:
        model = model_class(config.task).from_pretrained(
            config.model,
            **head_options(config.task, classes),
            revision=config.revision or "main",
            **_attention(config),
            dtype=dtype,
            quantization_config=quantization(config, dtype, compute or dtype),
            trust_remote_code=False,
            use_safetensors=True,
        )
    except UserError:
        raise
    except (OSError, ValueError) as error:
        if "attention implementation" in str(error):
            message = f"is not made for this model: {error}"
            raise UserError("attention", config.attention.value, message, "Set attention to auto.") from error
        raise _unloadable(config, "model", error) from error
    for module in model.modules():
        # bitsandbytes packs 4-bit weights anew for CPU inference at an evaluation; training cannot go on with those.
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
    if tokens > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(tokens)
    model.config.use_cache = False
    return model


def _attention(config: RunConfig) -> dict[str, str]:
    known = model_class(config.task)._model_mapping
    settings = AutoConfig.from_pretrained(config.model, revision=config.revision or "main", trust_remote_code=False)
    name = implementation(config, known[type(settings)]) if type(settings) in known else None
    return {"attn_implementation": name} if name else {}


def head_options(task: Task, classes: Sequence[str]) -> dict[str, Any]:
    """What a model that scores is told of its outputs: a reward is one number."""
    if task is Task.REWARD:
        return {"num_labels": 1}
    if task is Task.CLASSIFICATION and classes:
        names = dict(enumerate(classes))
        return {"num_labels": len(names), "id2label": names, "label2id": {name: key for key, name in names.items()}}
    return {}


def quantization(config: RunConfig, dtype: torch.dtype, compute: torch.dtype) -> BitsAndBytesConfig | None:
    """How bitsandbytes holds the frozen weights of a model in `dtype`, multiplied in `compute`; None where they are not
    quantized."""
    if config.quantized is Quantization.INT8:
        return BitsAndBytesConfig(load_in_8bit=True)
    if config.quantized is Quantization.NF4:
        # ZeRO-3 and FSDP shard what has the model's own format; each element of it then holds several weights.
        storage = dtype if config.strategy in (Strategy.ZERO3, Strategy.FSDP) else torch.uint8
        return BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=config.double_quantization,
            bnb_4bit_compute_dtype=compute,
            bnb_4bit_quant_storage=storage,
        )
    return None


def weights_dtype(config: RunConfig, precision: Precision) -> torch.dtype:
    """The format weights are kept in.

    Frozen weights (LoRA) take the compute format. Weights that all train stay in fp32 under autocast, since an update of
    1e-5 of a weight is lost in bf16; DeepSpeed keeps such a master copy itself.
    """
    if config.weights_precision is not Precision.AUTO and config.strategy.zero_stage is None:
        return DTYPES[config.weights_precision]
    if config.optimizer is OptimizerName.ADAMW_ANYPRECISION:
        return DTYPES[precision]  # its Kahan sums keep what rounding loses
    if config.method is Method.FULL and config.strategy.zero_stage is None:
        return torch.float32
    return DTYPES[precision]


def parameter_counts(model: torch.nn.Module) -> tuple[int, int]:
    """(trainable, total) parameter elements, whole even where ZeRO-3 holds only a shard of each here."""
    sizes = [(parameter.requires_grad, _elements(parameter)) for parameter in model.parameters()]
    return sum(size for trains, size in sizes if trains), sum(size for _, size in sizes)


def _elements(parameter: torch.nn.Parameter) -> int:
    held = int(getattr(parameter, "ds_numel", parameter.numel()))
    # Two weights in each byte of it. By name: bitsandbytes takes a second to import, and few runs need it.
    packed = type(parameter).__name__ == "Params4bit"
    return 2 * held * parameter.element_size() if packed else held


def hidden_size_of(folder: str) -> int | None:
    """The hidden size in a local folder's config.json, if there is one."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        return None
    values = json.loads(path.read_text(encoding="utf-8"))
    return next((values[key] for key in ("hidden_size", "n_embd", "d_model") if isinstance(values.get(key), int)), None)


def _unloadable(config: RunConfig, what: str, error: Exception) -> UserError:
    return UserError(
        "model",
        config.model,
        f"has no {what} that can be loaded: {error}",
        "Give a folder or hub id of a transformers model.",
    )
