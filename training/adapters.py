"""Putting PEFT's adapters on a model, by the method's name."""

import re
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel, PeftType, get_peft_model
from peft.mapping import PEFT_TYPE_TO_CONFIG_MAPPING, PEFT_TYPE_TO_TUNER_MAPPING
from transformers import PreTrainedModel

from training import lora_init
from training.config import Method, RunConfig
from training.failure import UserError
from training.freezing import beside_text
from training.methods import OptionError, as_names, is_pattern, method, options, usual_targets

UNKNOWN_STEPS = 10**9
"""AdaLoRA wants the run's length before it is known; `AdaLoraSteps` (training/method_steps.py) sets it when training begins."""


def add_adapter(
    model: PreTrainedModel, config: RunConfig, task_type: str = "CAUSAL_LM", initial: Path | None = None
) -> PeftModel:
    """`model` with the adapter of its method, all else frozen.

    In the folder `initial` first weights are kept of a LoRA whose initialisation changes the model's own weights; where they
    are there already, training began before and goes on from them.

    Raises:
        UserError: an option does not fit the method, no module of the model is meant, or PEFT cannot adapt this model.
    """
    check_modules(model, config.modules_to_save)
    again = initial is not None and initial.is_dir()
    wanted = adapter_config(config, model.config.model_type, task_type, plain=again)
    if hasattr(wanted, "exclude_modules") and (unused := beside_text(model)):
        wanted.exclude_modules = rf"({'|'.join(map(re.escape, unused))})\..*"
    try:
        adapted = get_peft_model(model, wanted)
    except (ValueError, TypeError, KeyError, NotImplementedError, RuntimeError) as error:
        raise _refused(model, config, error) from error
    train_in_one_format(adapted, config)
    if initial is not None and config.method.is_lora and config.lora_init.changes_weights:
        (lora_init.begin_again if again else lora_init.keep)(adapted, initial)
    return adapted


def train_in_one_format(model: PeftModel, config: RunConfig) -> None:
    """Brings all that trains into one format, where PEFT leaves whole modules such as a classifier's head in the model's.

    fp32, in which small updates are not lost; under ZeRO the model's own, since DeepSpeed keeps an fp32 copy itself and
    computes without autocast.
    """
    wanted = torch.float32 if config.strategy.zero_stage is None else model.get_base_model().dtype
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            parameter.data = parameter.data.to(wanted)


def adapter_config(config: RunConfig, model_type: str, task_type: str = "CAUSAL_LM", *, plain: bool = False) -> Any:
    """PEFT's configuration of the adapter; `plain` leaves the model's weights as they are, whatever the initialisation.

    Raises:
        UserError: an option that the method has not, or of another type.
    """
    kind, known = peft_type(config.method), method(config.method)
    assert known
    try:
        given: dict[str, Any] = {"task_type": task_type, **options(config.method, config.method_options)}
    except OptionError as error:
        raise UserError("method_options", config.method_options, error.message, error.fix) from None
    if config.method.is_lora:
        given |= _lora(config, plain=plain)
    if known.saves_modules and config.modules_to_save:
        given["modules_to_save"] = as_names(config.modules_to_save)
    if known.targets:
        given["target_modules"] = target_modules(config, model_type)
    if config.method is Method.ADALORA:
        given["total_step"] = UNKNOWN_STEPS
    if config.method is Method.PROMPT_TUNING:
        given["tokenizer_name_or_path"] = config.model
    try:
        return PEFT_TYPE_TO_CONFIG_MAPPING[kind](**given)
    except (ValueError, TypeError) as error:
        fix = f"docs/methods.md lists the options of {known.name}."
        raise UserError("method_options", config.method_options, f"do not fit {config.method}: {error}", fix) from error


def peft_type(wanted: Method) -> PeftType:
    """PEFT's type of a method's adapter."""
    name = Method.LORA if wanted is Method.QLORA else wanted
    return PeftType(name.upper())


def target_modules(config: RunConfig, model_type: str) -> list[str] | str | None:
    """PEFT's `target_modules`: None leaves the choice to PEFT where it knows the architecture; a pattern is one text."""
    wanted = config.target_modules
    if wanted == "auto":
        return _usual_targets(config.method, model_type)
    return wanted if wanted == "all-linear" or is_pattern(wanted) else as_names(wanted)


def targeted_modules(model: torch.nn.Module) -> list[str]:
    """The last parts of the names of the modules that carry the adapter."""
    names = getattr(getattr(model, "base_model", None), "targeted_module_names", [])
    return sorted({name.rsplit(".", 1)[-1] for name in names})


def linear_names(model: torch.nn.Module) -> list[str]:
    """The last parts of the names of the model's linear layers."""
    kinds = ("Linear", "Conv1D")  # GPT-2 has the latter
    found = {name.rsplit(".", 1)[-1] for name, part in model.named_modules() if type(part).__name__.startswith(kinds)}
    return sorted(found)


def _lora(config: RunConfig, *, plain: bool) -> dict[str, Any]:
    return {
        "r": config.lora_r,
        "lora_alpha": config.lora_alpha,
        "lora_dropout": config.lora_dropout,
        "use_rslora": config.use_rslora,
        "use_dora": config.use_dora,
        "init_lora_weights": True if plain else lora_init.peft_word(config.lora_init),
    }


def _usual_targets(wanted: Method, model_type: str) -> list[str] | str | None:
    """None where PEFT has a choice for the architecture, or for such a method no other; else every linear layer."""
    if wanted.is_lora and (names := usual_targets(wanted, model_type)):
        return list(names)  # left to itself, PEFT finds none of its own choice in Mixtral
    known = getattr(PEFT_TYPE_TO_TUNER_MAPPING[peft_type(wanted)], "target_module_mapping", None)
    return None if known is None or model_type in known or wanted is Method.LN_TUNING else "all-linear"


def check_modules(model: torch.nn.Module, names: str | None) -> None:
    """Refuses names that no module of the model has, which PEFT passes over in silence.

    Raises:
        UserError: naming those that there are.
    """
    known = {name.rsplit(".", 1)[-1] for name, _ in model.named_modules() if name}
    for wanted in as_names(names or ""):
        if wanted not in known:
            fix = f"It has {', '.join(sorted(name for name in known if not name.isdecimal()))}."
            raise UserError("modules_to_save", names, f"names {wanted}, which is no module of this model.", fix)


def _refused(model: PreTrainedModel, config: RunConfig, error: Exception) -> UserError:
    """An error of PEFT's, told by what it is about: the modules, an option, or the method itself."""
    message = str(error).strip() or type(error).__name__
    known = method(config.method)
    if re.search(r"[Tt]arget.?(modules|layer)", message):
        fix = f"Its linear layers are {', '.join(linear_names(model))}."
        return UserError("target_modules", config.target_modules, f"do not fit this model: {message}", fix)
    if "require gradients" in message and config.modules_to_save:
        fix = "Name modules that stay whole, such as lm_head and embed_tokens, or set quantization to none."
        return UserError("modules_to_save", config.modules_to_save, f"are quantised and cannot train: {message}", fix)
    if config.method_options or (known and any(name in message for name in known.options if len(name) > 1)):
        fix = f"docs/methods.md lists the options of {config.method}."
        return UserError("method_options", config.method_options, f"do not fit this model: {message}", fix)
    fix = "Choose other target_modules, or method lora."
    return UserError("method", config.method.value, f"does not fit this model: {message}", fix)
