"""Rules on LoRA and its variants."""

from collections.abc import Iterator

from training.config.choices import LoraInit, Method, Quantization, Strategy
from training.config.machine import Machine
from training.config.optimizer_name import OptimizerName
from training.config.peft_methods import is_pattern
from training.config.run_config import RunConfig
from training.rules.conflict import Conflict, rule

_ON_QUANTIZED = {LoraInit.DEFAULT, LoraInit.GAUSSIAN, LoraInit.LOFTQ}


@rule
def adalora_needs_gradients(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is Method.ADALORA and config.strategy.zero_stage is not None:
        several = config.num_processes > 1
        yield Conflict(
            ("strategy", "method"),
            "AdaLoRA reads the gradients of its matrices, which DeepSpeed does not expose.",
            f"Set strategy to {'ddp' if several else 'single'}, or method to lora.",
            {"strategy": "ddp" if several else "single"},
        )


@rule
def layers_to_transform_needs_named_modules(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    not_named = config.target_modules == "all-linear" or is_pattern(config.target_modules)
    if not_named and "layers_to_transform" in (config.method_options or ""):
        yield Conflict(
            ("target_modules", "method_options"),
            "layers_to_transform needs named target modules, not all-linear or a pattern.",
            "Set target_modules to auto or to names, or select the layers in the pattern.",
            {"target_modules": "auto"},
        )


@rule
def loftq_needs_4bit(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method.is_lora and config.lora_init is LoraInit.LOFTQ and config.quantized is not Quantization.NF4:
        yield Conflict(
            ("lora_init", "quantization"),
            f"LoftQ starts from the error of 4-bit quantization, and quantization is {config.quantized}.",
            "Set quantization to 4bit, or lora_init to default.",
            {"lora_init": "default"},
        )


@rule
def most_initializations_need_the_weights(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.method.is_lora:
        return
    quantized = config.quantized is not Quantization.NONE and config.lora_init not in _ON_QUANTIZED
    if quantized:
        reason = f"lora_init {config.lora_init} needs unquantized weights, and quantization is {config.quantized}."
    elif config.strategy is Strategy.ZERO3 and config.lora_init.reads_weights:
        reason = f"lora_init {config.lora_init} needs complete weights, and ZeRO-3 has already sharded them."
    else:
        return
    best = "loftq" if config.quantized is Quantization.NF4 and config.strategy is not Strategy.ZERO3 else "default"
    settings = ("lora_init", "quantization" if quantized else "strategy")
    yield Conflict(settings, reason, f"Set lora_init to {best}.", {"lora_init": best})


@rule
def dora_supports_neither_8bit_nor_mica(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.method.is_lora or not config.use_dora:
        return
    if config.quantized is Quantization.INT8:
        yield Conflict(
            ("use_dora", "quantization"),
            "DoRA needs the norm of each weight, which PEFT cannot compute from 8-bit weights.",
            "Set use_dora to false, or quantization to 4bit.",
            {"use_dora": False},
        )
    if config.lora_init is LoraInit.MICA:
        yield Conflict(
            ("use_dora", "lora_init"),
            "PEFT does not support DoRA with MiCA.",
            "Set use_dora to false, or lora_init to default.",
            {"lora_init": "default"},
        )


@rule
def lora_plus_does_not_support_muon(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method.is_lora and config.loraplus_lr_ratio and config.optimizer is OptimizerName.MUON:
        yield Conflict(
            ("loraplus_lr_ratio", "optimizer"),
            "Muon and LoRA+ both need their own parameter groups.",
            "Clear loraplus_lr_ratio, or set optimizer to adamw.",
            {"loraplus_lr_ratio": None},
        )


@rule
def adalora_checkpoints_lack_its_averages(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is Method.ADALORA and config.save_steps:
        yield Conflict(
            ("method", "save_steps"),
            "AdaLoRA's checkpoints do not contain its importance averages: a resumed run may give a different result.",
            "Set method to lora if a resumed run must give the same result.",
            {"method": "lora"},
            blocking=False,
        )
