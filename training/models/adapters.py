"""Adds the PEFT adapter of a method to a model."""

import re
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, PeftType, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from peft.tuners._buffer_dict import BufferDict
from peft.tuners.ln_tuning.layer import LNTuningLayer
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from transformers import PreTrainedModel

from training.config.choices import Method, Strategy
from training.config.continued_adapter import LORA_SETTINGS
from training.config.name_values import OptionError, as_names
from training.config.peft_methods import is_pattern, method_of, options, refused_targets, usual_targets, without_head
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models import lora_init
from training.models.freezing import modules_without_text

UNKNOWN_STEPS = 10**9
"""A placeholder: `AdaLoraCallback` (training/trainer/callbacks.py) sets AdaLoRA's total steps at the start."""


def add_adapter(
    model: PreTrainedModel, config: RunConfig, task_type: str = "CAUSAL_LM", initial: Path | None = None
) -> PeftModel:
    """Returns `model` with the adapter of its method; all other weights are frozen.

    Some LoRA initializations change the weights of the model. Their first matrices are saved in the folder `initial`; if
    it exists, training began before and the adapter starts from those matrices.

    Raises:
        UserError: an option does not fit the method, no module matches, or PEFT cannot adapt this model.
    """
    check_modules(model, config.modules_to_save)
    restores = initial is not None and initial.is_dir()
    peft_config = adapter_config(config, model.config.model_type, task_type, plain=restores)
    if hasattr(peft_config, "exclude_modules") and (pattern := _excluded(model, config)):
        peft_config.exclude_modules = pattern
    try:
        adapted = get_peft_model(model, peft_config)
    except (ValueError, TypeError, KeyError, NotImplementedError, RuntimeError) as error:
        raise _refused(model, config, error) from error
    if config.task.traits.fuses_head and isinstance(adapted.get_output_embeddings(), BaseTunerLayer):
        message = (
            f"put an adapter on the head, which would not train: task {config.task.value} reads only the head's weight."
        )
        raise UserError(
            "target_modules", config.target_modules, message, f"Set it to {without_head(config.target_modules)}."
        )
    for name, parameter in adapted.named_parameters():
        if ".ranknum." in name:  # AdaLoRA's constants, which PEFT makes trainable when it casts adapters
            parameter.requires_grad_(False)
    cast_trainable(adapted, config)
    match_whole_modules(adapted)
    if initial is not None and config.method.is_lora and config.lora_init.changes_weights:
        (lora_init.restore_initial if restores else lora_init.save_initial)(adapted, initial)
    return adapted


def _excluded(model: PreTrainedModel, config: RunConfig) -> str:
    """Returns a pattern of the modules that get no adapter: those that process no text, and what PEFT refuses to adapt."""
    patterns = [rf"{re.escape(name)}\..*" for name in modules_without_text(model)]
    if config.target_modules in ("auto", "all-linear"):
        patterns += [rf".*\.{name}" for name in refused_targets(config.method, model.config.model_type)]
    return "|".join(f"({pattern})" for pattern in patterns)


def cast_trainable(model: PeftModel, config: RunConfig) -> None:
    """Casts all trainable parameters to one dtype; PEFT leaves whole modules, such as a classifier head, in the model's.

    The dtype is fp32, so that small updates are not lost. Under ZeRO it is the model's own, since DeepSpeed keeps an fp32
    copy itself and computes without autocast.
    """
    dtype = torch.float32 if config.strategy.zero_stage is None else model.get_base_model().dtype
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)


def match_whole_modules(model: PeftModel) -> None:
    """Makes whole modules that train in fp32 fit between layers of 16-bit weights without autocast: `modules_to_save`, score heads
    and the norms of LN tuning.

    Their inputs are converted to their dtype, and their outputs to that of the model, except logits.
    """
    inner = model.get_base_model().dtype
    wrappers = [wrapper for wrapper in model.modules() if isinstance(wrapper, ModulesToSaveWrapper | LNTuningLayer)]
    for wrapper in wrappers if inner is not torch.float32 else ():
        copies = wrapper.ln_tuning_layers if isinstance(wrapper, LNTuningLayer) else wrapper.modules_to_save
        for module in copies.values():
            module.register_forward_pre_hook(lambda module, inputs: tuple(_as(one, module) for one in inputs))
            if not isinstance(module, torch.nn.Linear):
                module.register_forward_hook(lambda _, __, output: output if _autocasts(output) else output.to(inner))


def _as(value: Any, module: torch.nn.Module) -> Any:
    """Returns a tensor of numbers in the dtype of the module's weights, unless autocast converts it."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or _autocasts(value):
        return value
    return value.to(next(module.parameters()).dtype)


def _autocasts(tensor: torch.Tensor) -> bool:
    return torch.is_autocast_enabled(tensor.device.type)


def cast_fixed(model: PeftModel, config: RunConfig, dtype: torch.dtype) -> None:
    """Casts the tensors of an adapter that do not train, such as VeRA's matrices, to the dtype in which ranks compute.

    ZeRO and FSDP compute without autocast, and convert parameters only.
    """
    if config.strategy.zero_stage is None and config.strategy is not Strategy.FSDP:
        return
    for module in model.modules():
        for name, tensor in dict(module.items()).items() if isinstance(module, BufferDict) else ():
            module[name] = tensor.to(dtype) if tensor.is_floating_point() else tensor


def adapter_config(config: RunConfig, model_type: str, task_type: str = "CAUSAL_LM", *, plain: bool = False) -> Any:
    """Returns PEFT's configuration of the adapter. `plain` keeps the model's weights unchanged, whatever the initialization.

    Raises:
        UserError: an option is unknown to the method or of the wrong type.
    """
    kind, info = peft_type(config.method), method_of(config.method)
    assert info
    try:
        arguments: dict[str, Any] = {"task_type": task_type, **options(config.method, config.method_options)}
    except OptionError as error:
        raise UserError("method_options", config.method_options, error.message, error.fix) from None
    if config.method.is_lora:
        arguments |= _lora_arguments(config, plain=plain)
    if info.saves_modules and config.modules_to_save:
        arguments["modules_to_save"] = as_names(config.modules_to_save)
    if info.targets:
        arguments["target_modules"] = target_modules(config, model_type)
    if config.method is Method.ADALORA:
        arguments["total_step"] = UNKNOWN_STEPS
    if config.method is Method.PROMPT_TUNING:
        arguments["tokenizer_name_or_path"] = config.model
    try:
        return PEFT_TYPE_TO_CONFIG_MAPPING[kind](**arguments)
    except (ValueError, TypeError) as error:
        fix = f"docs/methods.md lists the options of {info.name}."
        raise UserError("method_options", config.method_options, f"do not fit {config.method}: {error}", fix) from error


def peft_type(kind: Method) -> PeftType:
    """Returns PEFT's type of a method's adapter."""
    name = Method.LORA if kind is Method.QLORA else kind
    return PeftType(name.upper())


def target_modules(config: RunConfig, model_type: str) -> list[str] | str | None:
    """Returns PEFT's `target_modules`: a list of names, one pattern, or None to use PEFT's default for the architecture."""
    targets = config.target_modules
    if targets == "auto":
        return _default_targets(config.method, model_type)
    return targets if targets == "all-linear" or is_pattern(targets) else as_names(targets)


def targeted_modules(model: torch.nn.Module) -> list[str]:
    """Returns the last name parts of the modules that carry the adapter, such as q_proj."""
    names = getattr(getattr(model, "base_model", None), "targeted_module_names", [])
    return sorted({name.rsplit(".", 1)[-1] for name in names})


def linear_names(model: torch.nn.Module) -> list[str]:
    """Returns the last name parts of the model's linear layers."""
    kinds = ("Linear", "Conv1D")  # GPT-2 uses Conv1D
    modules = model.named_modules()
    return sorted({name.rsplit(".", 1)[-1] for name, module in modules if type(module).__name__.startswith(kinds)})


def _lora_arguments(config: RunConfig, *, plain: bool) -> dict[str, Any]:
    return {
        **{key: getattr(config, name) for name, key in LORA_SETTINGS.items()},
        "lora_dropout": config.lora_dropout,
        "init_lora_weights": True if plain else lora_init.peft_init(config.lora_init),
    }


def _default_targets(kind: Method, model_type: str) -> list[str] | str | None:
    """Returns None if PEFT has a default for the architecture or the method takes no targets; else all linear layers."""
    if kind.is_lora and (names := usual_targets(kind, model_type)):
        return list(names)  # PEFT's own default matches no module of Mixtral
    defaults = getattr(PEFT_TYPE_TO_TUNER_MAPPING[peft_type(kind)], "target_module_mapping", None)
    return None if defaults is None or model_type in defaults or kind is Method.LN_TUNING else "all-linear"


def untrained_head(model: torch.nn.Module) -> str:
    """A sentence if the embeddings train as a whole and the head does not: new tokens are read but hardly written. Or empty."""
    base = model.get_base_model() if isinstance(model, PeftModel) else None
    head = base and base.get_output_embeddings()
    if base is None or head is None or not isinstance(embeddings := base.get_input_embeddings(), ModulesToSaveWrapper):
        return ""
    if any(parameter.requires_grad for parameter in head.parameters()):
        return ""
    names = {id(module): name.rsplit(".", 1)[-1] for name, module in base.named_modules()}
    trained, frozen = names[id(embeddings)], names[id(head)]
    return (
        f"{trained} trains and {frozen} does not: the model learns to read new tokens, but not to write them. "
        f"Add {frozen} to modules_to_save."
    )


def check_modules(model: torch.nn.Module, names: str | None) -> None:
    """Checks that the model has modules of these names; PEFT ignores unknown ones silently.

    Raises:
        UserError: the model has no module of a name; the fix lists those it has.
    """
    own = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules() if name}
    for name in as_names(names or ""):
        if name not in own:
            fix = f"Its modules are {', '.join(sorted(other for other in own if not other.isdecimal()))}."
            raise UserError("modules_to_save", names, f"names {name}, but this model has no such module.", fix)


def _refused(model: PreTrainedModel, config: RunConfig, error: Exception) -> UserError:
    """Returns an error of PEFT as a UserError of the setting that caused it: modules, an option, or the method itself."""
    message = str(error).strip() or type(error).__name__
    info = method_of(config.method)
    if re.search(r"[Tt]arget.?(module|layer)", message):
        fix = f"Its linear layers are {', '.join(linear_names(model))}."
        return UserError("target_modules", config.target_modules, f"do not fit this model: {message}", fix)
    if "require gradients" in message and config.modules_to_save:
        fix = "Name modules that are not quantized, such as lm_head and embed_tokens, or set quantization to none."
        return UserError("modules_to_save", config.modules_to_save, f"are quantized and cannot train: {message}", fix)
    if config.method_options or (info and any(name in message for name in info.options if len(name) > 1)):
        fix = f"docs/methods.md lists the options of {config.method}."
        return UserError("method_options", config.method_options, f"do not fit this model: {message}", fix)
    for name, fix in (("lora_dropout", "Set it to 0."), ("use_dora", "Set it to false.")):
        if name in message:  # adapters of experts that are fused into one tensor
            return UserError(name, getattr(config, name), f"does not fit this model: {message}", fix)
    fix = "Choose other target_modules, or method lora."
    return UserError("method", config.method.value, f"does not fit this model: {message}", fix)
