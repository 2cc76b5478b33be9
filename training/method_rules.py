"""Rules of methods: what PEFT's methods can be put on, and settings that belong to others. Found by trying each; no torch."""

import re
from collections.abc import Iterator

from training.config import LoraInit, Method, OptimizerName, Quantization, RunConfig, Strategy, Task
from training.fields import settings
from training.methods import (
    REQUIRED,
    OptionError,
    as_names,
    is_pattern,
    method,
    options,
    parse,
    template_arguments,
    written,
)
from training.rules import Conflict, Machine, rule

_BOTH = frozenset({Quantization.NF4, Quantization.INT8})
_NF4 = frozenset({Quantization.NF4})
CANNOT_HOLD = {
    # They compute with the weights themselves, which are packed then.
    Method.DEFT: _BOTH,
    Method.DELORA: _BOTH,
    Method.FROD: _BOTH,
    Method.GLORA: _BOTH,
    Method.HRA: _BOTH,
    Method.LOHA: _NF4,
    Method.LOKR: _NF4,
    Method.OSF: _BOTH,
    Method.PEANUT: _BOTH,
    Method.PSOFT: _BOTH,
    Method.SUPERTUNING: _BOTH,
    Method.TINYLORA: _BOTH,
    Method.UNILORA: _BOTH,
}
"""How the frozen weights cannot be held, by method: PEFT refuses, fails, or learns nothing."""
UNDER_NO_ZERO3 = {
    Method.CARTRIDGE,
    Method.DEFT,
    Method.DELORA,
    Method.FROD,
    Method.LN_TUNING,
    Method.LOHA,
    Method.OSF,
    Method.P_TUNING,
    Method.PREFIX_TUNING,
    Method.PROMPT_TUNING,
    Method.SUPERTUNING,
    Method.TINYLORA,
    Method.TRAINABLE_TOKENS,
}
UNDER_NO_FSDP = {
    Method.ADALORA: "measures whole matrices",
    Method.CARTRIDGE: "saves its virtual tokens whole",
    Method.LILY: "shares matrices between layers",
    Method.P_TUNING: "looks its virtual tokens up whole",
    Method.PREFIX_TUNING: "looks its virtual tokens up whole",
    Method.PROMPT_TUNING: "looks its virtual tokens up whole",
    Method.TINYLORA: "shares vectors between layers",
    Method.UNILORA: "shares vectors between layers",
    Method.VBLORA: "shares vectors between layers",
}
"""Methods that fail or hang under FSDP, each with what it does that a sharded model cannot."""
_PREFIXES = {Method.PREFIX_TUNING, Method.CARTRIDGE}
_BESIDE_QUANTIZED = {LoraInit.DEFAULT, LoraInit.GAUSSIAN, LoraInit.LOFTQ}
_LORA_SETTINGS = ("lora_r", "lora_alpha", "lora_dropout", "use_rslora", "use_dora", "lora_init", "loraplus_lr_ratio")


def holds(wanted: Method, quantization: Quantization) -> bool:
    """Whether the method trains beside weights that are held so."""
    return quantization is Quantization.NONE or quantization not in CANNOT_HOLD.get(wanted, frozenset())


@rule
def chat_template_arguments_are_the_template_s(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    try:
        template_arguments(config.chat_template_kwargs)
    except OptionError as error:
        changes = {"chat_template_kwargs": error.mended or None}
        yield Conflict(("chat_template_kwargs",), f"chat_template_kwargs {error.message}", error.fix, changes)


@rule
def method_options_fit_the_method(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    try:
        options(config.method, config.method_options)
    except OptionError as error:
        yield Conflict(("method_options", "method"), error.message, error.fix, {"method_options": error.mended or None})


@rule
def some_methods_need_options(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    try:
        given = parse(config.method_options)
    except OptionError:
        return
    missing = {name: value for name, value in REQUIRED.get(config.method, {}).items() if name not in given}
    if missing:
        names = " and ".join(missing)
        yield Conflict(
            ("method_options", "method"),
            f"{config.method} needs {names}.",
            f"Set method_options to {written(given | missing)}, or what suits.",
            {"method_options": written(given | missing)},
        )


@rule
def some_methods_need_whole_weights(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not holds(config.method, config.quantized):
        others = [one.value for one in Quantization if holds(config.method, one)]
        yield Conflict(
            ("quantization", "method"),
            f"{config.method} computes with the weights themselves and cannot with {config.quantized} ones.",
            f"Set quantization to {' or '.join(others)}, or method to qlora.",
            {"quantization": "none"},
        )


@rule
def prefixes_need_their_activations(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method in _PREFIXES and config.recomputes:
        yield Conflict(
            ("gradient_checkpointing", "method"),
            f"{config.method} puts keys and values into the cache, which gradient checkpointing does without.",
            "Set gradient_checkpointing to none, or method to prompt_tuning.",
            {"gradient_checkpointing": "none"},
        )


@rule
def adalora_needs_gradients_and_whole_matrices(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is Method.ADALORA and config.strategy.zero_stage is not None:
        spread = config.num_processes > 1
        yield Conflict(
            ("strategy", "method"),
            "AdaLoRA weighs its matrices by their gradients, which DeepSpeed keeps to itself.",
            f"Set strategy to {'ddp' if spread else 'single'}, or method to lora.",
            {"strategy": "ddp" if spread else "single"},
        )


@rule
def some_methods_need_whole_adapters(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method in UNDER_NO_FSDP and config.strategy is Strategy.FSDP:
        yield Conflict(
            ("strategy", "method"),
            f"{config.method} {UNDER_NO_FSDP[config.method]}, and FSDP has them in parts, a layer at a time.",
            "Set strategy to ddp, or method to lora.",
            {"strategy": "ddp"},
        )


@rule
def some_methods_need_whole_layers(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method in UNDER_NO_ZERO3 and config.strategy is Strategy.ZERO3:
        yield Conflict(
            ("strategy", "method"),
            f"{config.method} works on whole weights, and ZeRO-3 has them in parts.",
            "Set strategy to zero2, or method to lora.",
            {"strategy": "zero2"},
        )


@rule
def ia3_asks_which_modules_are_feed_forward(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is not Method.IA3 or config.target_modules == "auto":
        return
    try:
        feed_forward = options(config.method, config.method_options).get("feedforward_modules")
    except OptionError:
        return
    if feed_forward is None:
        reason = "IA3 scales feed-forward modules at their input and others at their output, and is not told which are which."
    elif isinstance(feed_forward, list) and not set(feed_forward) <= set(as_names(config.target_modules)):
        reason = "feedforward_modules names modules that are no target modules."
    else:
        return
    yield Conflict(
        ("target_modules", "method_options"),
        reason,
        "Set target_modules to auto, or give method_options feedforward_modules=[...], some of the target modules.",
        {"target_modules": "auto", "method_options": None},
    )


@rule
def target_modules_that_are_a_pattern_must_be_one(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not is_pattern(config.target_modules):
        return
    try:
        re.compile(config.target_modules)
    except re.error as error:
        yield Conflict(
            ("target_modules",),
            f"The regular expression is broken: {error}.",
            r"For example .*\.(q_proj|v_proj), or names separated by commas, or auto.",
            {"target_modules": "auto"},
        )


@rule
def layers_are_chosen_of_named_modules(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    one_text = config.target_modules == "all-linear" or is_pattern(config.target_modules)
    if one_text and "layers_to_transform" in (config.method_options or ""):
        yield Conflict(
            ("target_modules", "method_options"),
            "layers_to_transform goes with target modules that are named, not with all-linear or a pattern.",
            "Set target_modules to auto or names, or put the layers into the pattern.",
            {"target_modules": "auto"},
        )


@rule
def loftq_needs_4bit(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method.is_lora and config.lora_init is LoraInit.LOFTQ and config.quantized is not Quantization.NF4:
        yield Conflict(
            ("lora_init", "quantization"),
            f"LoftQ begins with what 4bit has lost, and quantization is {config.quantized}.",
            "Set quantization to 4bit, or lora_init to default.",
            {"lora_init": "default"},
        )


@rule
def most_initialisations_need_whole_weights(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.method.is_lora:
        return
    quantised = config.quantized is not Quantization.NONE and config.lora_init not in _BESIDE_QUANTIZED
    if quantised:
        reason = f"lora_init {config.lora_init} needs whole weights, and quantization is {config.quantized}."
    elif config.strategy is Strategy.ZERO3 and config.lora_init.reads_weights:
        reason = f"lora_init {config.lora_init} needs whole weights, which ZeRO-3 has sharded by then."
    else:
        return
    best = "loftq" if config.quantized is Quantization.NF4 and config.strategy is not Strategy.ZERO3 else "default"
    settings = ("lora_init", "quantization" if quantised else "strategy")
    yield Conflict(settings, reason, f"Set lora_init to {best}.", {"lora_init": best})


@rule
def dora_knows_neither_8bit_nor_mica(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.method.is_lora or not config.use_dora:
        return
    if config.quantized is Quantization.INT8:
        yield Conflict(
            ("use_dora", "quantization"),
            "DoRA needs the size of each weight, which PEFT cannot read from 8bit ones.",
            "Set use_dora to false, or quantization to 4bit.",
            {"use_dora": False},
        )
    if config.lora_init is LoraInit.MICA:
        yield Conflict(
            ("use_dora", "lora_init"),
            "PEFT joins no DoRA with MiCA.",
            "Set use_dora to false, or lora_init to default.",
            {"lora_init": "default"},
        )


@rule
def a_reference_needs_the_weights_as_they_were(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.task in (Task.DPO, Task.KTO) and config.method.is_lora and config.lora_init.changes_weights:
        yield Conflict(
            ("lora_init", "task"),
            f"{config.task} compares with the model without its adapter, and {config.lora_init} has changed that model's weights.",
            "Set lora_init to default.",
            {"lora_init": "default"},
        )


@rule
def lora_plus_needs_an_optimizer_of_groups(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method.is_lora and config.loraplus_lr_ratio and config.optimizer is OptimizerName.MUON:
        yield Conflict(
            ("loraplus_lr_ratio", "optimizer"),
            "Muon sorts the parameters by itself, and LoRA+ into A and B.",
            "Leave loraplus_lr_ratio empty, or set optimizer to adamw.",
            {"loraplus_lr_ratio": None},
        )


@rule
def settings_of_another_method_do_nothing(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    strange = [] if config.method.is_lora else list(_LORA_SETTINGS)
    known = method(config.method)
    if known is None or not known.targets:
        strange.append("target_modules")
    if config.method is not Method.FULL:
        strange.append("trainable_layers")
    if not (known.saves_modules if known else config.trainable_layers):
        strange.append("modules_to_save")
    for name in strange:
        default = settings()[name].default
        if getattr(config, name) == default:
            continue
        own = known.options if known else {}
        fix = f"Leave it at its default, {default}."
        if name.removeprefix("lora_") in own:
            fix += f" What {config.method} calls {name.removeprefix('lora_')} goes into method_options."
        yield Conflict(
            (name, "method"), f"{name} does nothing with method {config.method}.", fix, {name: default}, blocking=False
        )


@rule
def adalora_forgets_its_averages(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is Method.ADALORA and config.save_steps:
        yield Conflict(
            ("method", "save_steps"),
            "AdaLoRA's averages of importance are not in its checkpoints: a resumed run gathers them anew and may end otherwise.",
            "Set method to lora where a resumed run must end the same.",
            {"method": "lora"},
            blocking=False,
        )
