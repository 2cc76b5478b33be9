"""Takes strategy, offload, precision and sizes from a DeepSpeed JSON or an FSDP section."""

from typing import Any

from training.foreign.entries import Answer, Rule, Table, Values, ignored, is_on

_IN_LATHE = "Lathe sets this itself."
_USUAL_IN_OTHERS = {"model", "model_name_or_path", "base_model", "learning_rate", "lr"}  # and never in a DeepSpeed JSON
_BY_FILE = "to keep it, give the whole file as deepspeed_config."


def _zero(value: Any, _: Values) -> Answer:
    """The stage and the offload of a DeepSpeed JSON."""
    zero = _section(value)
    stage = zero.get("stage", 0)
    if stage not in (0, 1, 2, 3):
        return Answer(None, "ZeRO has the stages 0 to 3.")
    settings: Values = {"strategy": f"zero{stage}"}
    for part in ("offload_optimizer", "offload_param"):
        offload = _section(zero.get(part))
        if offload.get("device") in ("cpu", "nvme"):
            settings[part] = offload["device"]
        if offload.get("device") == "nvme" and offload.get("nvme_path"):
            settings["nvme_path"] = offload["nvme_path"]
    return Answer(settings)


def _number(setting: str) -> Rule:
    def rule(value: Any, _: Values) -> Answer:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return Answer({setting: value}) if is_number else Answer({}, "is left to the run's settings.")

    return rule


def _optimizer(value: Any, _: Values) -> Answer:
    params = _section(_section(value).get("params"))
    given = {"learning_rate": params.get("lr"), "weight_decay": params.get("weight_decay")}
    return Answer({name: one for name, one in given.items() if isinstance(one, float)}, "Lathe uses its own optimizer.")


def _precision(name: str) -> Rule:
    def rule(value: Any, _: Values) -> Answer:
        return Answer({"precision": name}) if is_on(_section(value).get("enabled")) else Answer({}, "is off.")

    return rule


DEEPSPEED_KEYS: Table = {
    "zero_optimization": _zero,
    "optimizer": _optimizer,
    "scheduler": ignored("lr_scheduler and warmup say this."),
    "bf16": _precision("bf16"),
    "fp16": _precision("fp16"),
    "gradient_clipping": _number("max_grad_norm"),
    "train_micro_batch_size_per_gpu": _number("micro_batch_size"),
    "gradient_accumulation_steps": _number("gradient_accumulation_steps"),
    "train_batch_size": ignored("the micro batch, the accumulation and the processes give it."),
    "steps_per_print": ignored(_IN_LATHE),
    "wall_clock_breakdown": ignored(_IN_LATHE),
    "zero_allow_untested_optimizer": ignored(_IN_LATHE),
    "zero_force_ds_cpu_optimizer": ignored(_IN_LATHE),
}
DEEPSPEED_OTHERS: Table = {"": lambda _, __: Answer(None, _BY_FILE)}


def from_deepspeed(file: Values) -> Values:
    """The settings that a DeepSpeed JSON gives; "auto" gives none."""
    settings: Values = {"strategy": "zero0"}  # unless it has a section zero_optimization
    for key, rule in DEEPSPEED_KEYS.items():
        if key in file:
            settings |= rule(file[key], file).settings or {}
    return settings


def from_fsdp(section: Values) -> Values:
    """The settings that an FSDP section of accelerate, transformers or axolotl gives."""
    plain = {str(name).removeprefix("fsdp_"): value for name, value in section.items()}
    settings: Values = {"strategy": "fsdp"}
    if is_on(plain.get("offload_params")):
        settings["offload_param"] = "cpu"
    if is_on(plain.get("activation_checkpointing")):
        settings["gradient_checkpointing"] = "full"
    return settings


def looks_like_deepspeed(values: Any) -> bool:
    """True if the values are a DeepSpeed JSON."""
    if not isinstance(values, dict):
        return False
    sized = "train_batch_size" in values and not _USUAL_IN_OTHERS & values.keys()
    return sized or "zero_optimization" in values or "train_micro_batch_size_per_gpu" in values


def _section(value: Any) -> Values:
    return value if isinstance(value, dict) else {}
