"""Rules of PEFT's methods: supported weights, strategies and options, as found by running each method."""

from collections.abc import Iterator

from training.config.choices import Method, Quantization, Strategy
from training.config.machine import Machine
from training.config.name_values import OptionError, as_names, parse, written
from training.config.peft_methods import REQUIRED, is_pattern, options, pattern_problem, targets_head, without_head
from training.config.run_config import RunConfig
from training.config.task import Task
from training.rules.conflict import Conflict, rule
from training.tables import Otherwise, only

_BOTH = frozenset(Quantization) - {Quantization.NONE}
_NF4 = frozenset({Quantization.NF4})
NO_QUANTIZATION: dict[Method, frozenset[Quantization]] = Otherwise(
    frozenset(),
    {
        # These compute with the weights themselves, which quantization packs.
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
    },
)
"""Unsupported quantization of the frozen weights, by method: PEFT refuses, fails, or does not learn."""
NO_ZERO3 = {
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
NO_FSDP = only(
    {
        Method.ADALORA: "needs complete matrices",
        Method.CARTRIDGE: "saves all its virtual tokens at once",
        Method.LILY: "shares matrices between layers",
        Method.P_TUNING: "embeds all its virtual tokens at once",
        Method.PREFIX_TUNING: "embeds all its virtual tokens at once",
        Method.PROMPT_TUNING: "embeds all its virtual tokens at once",
        Method.TINYLORA: "shares vectors between layers",
        Method.UNILORA: "shares vectors between layers",
        Method.VBLORA: "shares vectors between layers",
    }
)
"""Methods that fail or hang with FSDP, each with the operation that needs unsharded weights."""
_WITH_REFERENCE = frozenset(task for task in Task if task.traits.has_reference)
_WITH_SAMPLES = frozenset(task for task in Task if task.traits.samples)
_ORPO_AND_SAMPLES = _WITH_SAMPLES | {task for task in Task if task.traits.odds_ratio}
NO_TASKS: dict[Method, tuple[frozenset[Task], str]] = Otherwise(
    (frozenset(), ""),
    {
        Method.ADALORA: (_WITH_REFERENCE, "allows one trainable adapter, and trl adds a second one for the reference"),
        Method.ADAPTION_PROMPT: (
            frozenset(task for task in Task if task.traits.fuses_head or task.traits.has_encoder),
            "adapts decoder-only models and returns no log-probabilities, which the losses of DPO, KTO and GRPO need",
        ),
        Method.P_TUNING: (_ORPO_AND_SAMPLES, "adds virtual tokens, which this loss does not expect"),
        Method.PROMPT_TUNING: (_ORPO_AND_SAMPLES, "adds virtual tokens, which this loss does not expect"),
        Method.PREFIX_TUNING: (_WITH_SAMPLES, "adds virtual tokens, which this loss does not expect"),
        Method.CARTRIDGE: (_WITH_SAMPLES, "adds virtual tokens, which this loss does not expect"),
    },
)
"""Methods that fail in some tasks, with the reason."""
_PREFIXES = {Method.PREFIX_TUNING, Method.CARTRIDGE}


def supports(method: Method, quantization: Quantization) -> bool:
    """True if the method supports frozen weights with this quantization."""
    return quantization is Quantization.NONE or quantization not in NO_QUANTIZATION[method]


@rule
def method_options_fit_the_method(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    try:
        options(config.method, config.method_options)
    except OptionError as error:
        yield Conflict(
            ("method_options", "method"), error.message, error.fix, {"method_options": error.corrected or None}
        )


@rule
def some_methods_need_options(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    try:
        given = parse(config.method_options)
    except OptionError:
        return
    missing = {name: value for name, value in REQUIRED[config.method].items() if name not in given}
    if missing:
        names = " and ".join(missing)
        yield Conflict(
            ("method_options", "method"),
            f"{config.method} needs {names}.",
            f"Set method_options to {written(given | missing)}, or other values.",
            {"method_options": written(given | missing)},
        )


@rule
def some_methods_need_unquantized_weights(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not supports(config.method, config.quantized):
        supported = [choice.value for choice in Quantization if supports(config.method, choice)]
        yield Conflict(
            ("quantization", "method"),
            f"{config.method} computes with the weights themselves and does not support {config.quantized}.",
            f"Set quantization to {' or '.join(supported)}, or method to qlora.",
            {"quantization": "none"},
        )


@rule
def prefixes_need_the_cache(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method in _PREFIXES and config.recomputes:
        yield Conflict(
            ("gradient_checkpointing", "method"),
            f"{config.method} adds keys and values to the cache, which gradient checkpointing disables.",
            "Set gradient_checkpointing to none, or method to prompt_tuning.",
            {"gradient_checkpointing": "none"},
        )


@rule
def some_methods_do_not_support_fsdp(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method in NO_FSDP and config.strategy is Strategy.FSDP:
        yield Conflict(
            ("strategy", "method"),
            f"{config.method} {NO_FSDP[config.method]}, and FSDP shards them layer by layer.",
            "Set strategy to ddp, or method to lora.",
            {"strategy": "ddp"},
        )


@rule
def some_methods_do_not_support_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method in NO_ZERO3 and config.strategy is Strategy.ZERO3:
        yield Conflict(
            ("strategy", "method"),
            f"{config.method} needs complete weights, and ZeRO-3 shards them.",
            "Set strategy to zero2, or method to lora.",
            {"strategy": "zero2"},
        )


@rule
def trained_tokens_need_gpus_under_zero3(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    """PEFT gathers their embeddings from the ranks on CUDA devices only."""
    try:
        given = parse(config.method_options)
    except OptionError:
        return
    if machine.kind != "cpu" or config.strategy is not Strategy.ZERO3 or not config.method.is_lora:
        return
    if "trainable_token_indices" in given:
        yield Conflict(
            ("strategy", "method_options"),
            "trainable_token_indices is gathered on GPUs under ZeRO-3, and this machine has none.",
            "Set strategy to zero2, or omit trainable_token_indices.",
            {"strategy": "zero2"},
        )


@rule
def some_methods_do_not_support_some_tasks(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    tasks, reason = NO_TASKS[config.method]
    if config.task in tasks:
        yield Conflict(
            ("method", "task"),
            f"{config.method} {reason}.",
            "Set method to lora.",
            {"method": "lora", "method_options": None},
        )


@rule
def log_probabilities_exclude_an_adapter_on_the_head(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not config.task.traits.fuses_head or not config.method.adapts or not targets_head(config.target_modules):
        return
    others = without_head(config.target_modules)
    yield Conflict(
        ("target_modules", "task"),
        f"Task {config.task.value} computes log probabilities from the weight of the head, so an adapter on it would not train.",
        f"Set target_modules to {others}.",
        {"target_modules": others},
    )


@rule
def ia3_needs_its_feedforward_modules(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is not Method.IA3 or config.target_modules == "auto":
        return
    try:
        feed_forward = options(config.method, config.method_options).get("feedforward_modules")
    except OptionError:
        return
    if feed_forward is None:
        reason = "IA3 scales feed-forward modules at the input and other modules at the output; feedforward_modules is missing."
    elif isinstance(feed_forward, list) and not set(feed_forward) <= set(as_names(config.target_modules)):
        reason = "feedforward_modules contains modules that are not target modules."
    else:
        return
    yield Conflict(
        ("target_modules", "method_options"),
        reason,
        "Set target_modules to auto, or add feedforward_modules=[...] with some of the target modules to method_options.",
        {"target_modules": "auto", "method_options": None},
    )


@rule
def a_pattern_of_target_modules_must_be_valid(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if not is_pattern(config.target_modules):
        return
    if problem := pattern_problem(config.target_modules):
        yield Conflict(
            ("target_modules",),
            f"The regular expression {problem}.",
            r"Write for example .*\.(q_proj|v_proj), or names separated by commas, or auto.",
            {"target_modules": "auto"},
        )


@rule
def a_reference_model_needs_the_original_weights(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.has_reference and config.method.is_lora and config.lora_init.changes_weights:
        yield Conflict(
            ("lora_init", "task"),
            f"{config.task} uses the model without its adapter as reference, and {config.lora_init} changes that model's weights.",
            "Set lora_init to default.",
            {"lora_init": "default"},
        )


@rule
def quantized_weights_cannot_train(config: RunConfig, machine: Machine) -> Iterator[Conflict]:
    if config.method is Method.FULL and config.quantization is not Quantization.NONE:
        yield Conflict(
            ("quantization", "method"),
            f"Full fine-tuning cannot train weights in {config.quantization.value}.",
            "Set method to qlora, or quantization to none.",
            {"method": "qlora"},
        )
