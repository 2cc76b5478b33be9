"""Keys of transformers' TrainingArguments, which LLaMA-Factory, axolotl and trl share, and other keys of several programs."""

import json
from typing import Any

from training.config.name_values import TRACKERS, written
from training.foreign.entries import IS_EMPTY, IS_OFF, Answer, Rule, Table, Values, is_off, is_on, names, read
from training.foreign.sharding import from_fsdp

COMMAND = "command"
"""The command that a program's arguments are of, as a key of their own: `trl dpo`, `scripts/run_sft.py`."""
FILE = "file"
"""The path of a file of arguments, where its name says the task."""


def adapter(bits: Any) -> Values:
    """The method of a program's LoRA: QLoRA if its weights are quantized to 4 or 8 `bits`."""
    return {"method": "qlora", "quantization": f"{bits}bit"} if bits else {"method": "lora"}


def targets(value: Any, _: Values) -> Answer:
    """Target modules by name, or all of them."""
    if is_off(value):
        return Answer({})
    modules = names(value).replace(" ", "")
    return Answer({"target_modules": "all-linear" if modules in ("all", "all-linear") else modules})


def length(value: Any, _: Values) -> Answer:
    """The longest row in tokens; without it, the program does not truncate."""
    if value is None:
        return Answer(None, "Lathe always truncates; set max_length to the longest sequence of the model.")
    return Answer({"max_length": value})


def summed(**lengths: int) -> Rule:
    """A rule for the lengths of prompt and answer, with their defaults: in a model that continues a text they add up."""

    def rule(_: Any, values: Values) -> Answer:
        parts = [values.get(name, default) for name, default in lengths.items()]
        whole = all(isinstance(part, int) for part in parts)
        return Answer({"max_length": sum(parts)} if whole else None, "the sum of both.")

    return rule


def _warmup(other: str, *, counts: bool) -> Rule:
    """warmup_ratio and warmup_steps: a share below 1, or a number of steps, which `counts` unless it is 0."""

    def rule(value: Any, values: Values) -> Answer:
        if not _is_zero(values.get(other)) and (_is_zero(value) or not counts):
            return Answer({}, f"{other} is given too, which counts.")
        return Answer({"warmup": value or 0})

    return rule


def _is_zero(value: Any) -> bool:
    return is_off(value) or str(value).strip() in ("0", "0.0")


_HALF_A_CYCLE = 0.5
"""From the peak to 0, as the cosine schedules of transformers decay without num_cycles."""


def max_steps(value: Any, _: Values) -> Answer:
    return Answer({"max_steps": value}) if isinstance(value, int) and value > 0 else Answer({}, "means no limit.")


_OF_WEIGHTS = "is off: it computes in the format of the loaded weights. Set precision to fp32 if that is fp32."


def of_weights(values: Values) -> Values | None:
    """The precision of a program that computes in the format of the loaded weights, if the values say that format."""
    formats = {"bfloat16": "bf16", "bf16": "bf16", "float32": "fp32", "fp32": "fp32"}
    given = next((str(values[key]) for key in ("torch_dtype", "dtype") if values.get(key)), "")
    return {"precision": formats[given]} if given in formats else None


def bf16(off: Answer | None = None) -> Rule:
    """A rule for bf16, which counts before fp16; `off` is the answer if both are off."""

    def rule(value: Any, values: Values) -> Answer:
        if is_on(value) or str(value) == "full":
            return Answer({"precision": "bf16"})
        if value is None:
            return IS_EMPTY
        if is_on(values.get("fp16")):
            return Answer({}, "fp16 is on.")
        if not is_off(value):
            return Answer({"precision": "auto"})
        known = of_weights(values)
        return off or (
            Answer(known, "is the format of the weights.") if known else Answer({"precision": "auto"}, _OF_WEIGHTS)
        )

    return rule


def _fp16(value: Any, values: Values) -> Answer:
    if not is_on(value):
        return IS_OFF
    other = values.get("bf16")
    return Answer({}, "bf16 is on.") if is_on(other) or str(other) == "full" else Answer({"precision": "fp16"})


def steps(setting: str, *, counts: bool = False) -> Rule:
    """eval_steps, save_steps and logging_steps, unless they or their strategy are off; a strategy that is off may not count."""
    strategies = (
        [] if counts else [setting.replace("_steps", "_strategy"), setting.replace("eval_steps", "evaluation_strategy")]
    )

    def rule(value: Any, values: Values) -> Answer:
        off = next((key for key in strategies if values.get(key) is not None and is_off(values[key])), None)
        if off:
            return Answer({}, f"{off} is off.")
        return Answer({setting: value}) if isinstance(value, (int, float)) else IS_EMPTY

    return rule


def _checkpointing(value: Any, values: Values) -> Answer:
    if is_off(value):
        section = values.get("fsdp_config")
        if isinstance(section, dict) and from_fsdp(section).get("gradient_checkpointing"):
            return Answer({}, "fsdp_config turns it on.")
        return Answer({"gradient_checkpointing": "none"})
    offloads = "offload" in str(value) or str(value) == "unsloth" or is_on(values.get("activation_offloading"))
    return Answer({"gradient_checkpointing": "offloaded" if offloads else "full"})


def _scheduler_options(value: Any, values: Values) -> Answer:
    if not isinstance(value, dict) or not value:
        return IS_EMPTY if is_off(value) else Answer(None, "is not a mapping.")
    rate = next((given for key, given in values.items() if key.rpartition(".")[2] == "learning_rate"), None)
    settings: Values = {}
    for name, given in value.items():
        if name in ("min_lr_rate", "min_lr_ratio"):
            settings["min_lr_ratio"] = given
        elif name == "min_lr" and isinstance(given, (int, float)) and isinstance(rate, (int, float)) and rate > 0:
            settings["min_lr_ratio"] = given / rate
        elif name == "num_cycles" and isinstance(given, int):
            settings["lr_cycles"] = given
        elif name == "num_cycles" and given == _HALF_A_CYCLE:
            continue
        else:
            note = f"{name} is not supported; Lathe has min_lr_ratio, lr_cycles and decay_share."
            return Answer(settings or None, note)
    return Answer(settings, "" if settings else "is how this schedule decays.")


def _hub_name(value: Any, values: Values) -> Answer:
    if is_off(value) or not is_on(values.get("push_to_hub")):
        return Answer({}, "push_to_hub is off.")
    if "/" not in str(value):
        return Answer(None, "give push_to_hub with the owner of the repository: owner/name.")
    return Answer({"push_to_hub": value})


def _report_to(value: Any, _: Values) -> Answer:
    given = [str(name).strip().lower() for name in (value if isinstance(value, list) else str(value or "").split(","))]
    known = [name for name in given if name in TRACKERS]
    others = ", ".join(name for name in given if name not in (*TRACKERS, "none", ""))
    if others == "all":
        return Answer({}, "means every installed tracker; name those that you use.")
    note = f"Lathe does not report to {others}." if others else ""
    if not known:
        return Answer(None, note) if note else IS_OFF
    return Answer({"report_to": ", ".join(known)}, note)


def _own_token(value: Any, _: Values) -> Answer:
    """A token of one's own; a dump of the arguments has a stand-in where none is given."""
    if is_off(value) or str(value).startswith("<"):
        return Answer({}, "is the tokenizer's.")
    return Answer(None, "Lathe uses the tokenizer's own; change it in tokenizer_config.json.")


_MODELS = ("model_name_or_path", "model_id", "model_name", "model_path", "base_model", "model.model_name")


def _tokenizer(value: Any, values: Values) -> Answer:
    """A tokenizer by name, which is another one unless it is the model's."""
    if is_off(value) or value in [values.get(key) for key in _MODELS]:
        return Answer({}, "is the model's.")
    return Answer(None, "Lathe takes the tokenizer from the model's folder; chat_template sets another template.")


def template_arguments(value: Any, _: Values) -> Answer:
    """Arguments of the chat template: a mapping, or one as JSON text."""
    if is_off(value):
        return IS_EMPTY
    try:
        arguments = json.loads(value) if isinstance(value, str) else value
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return Answer(None, "is not a mapping; set chat_template_kwargs.")
    return Answer({"chat_template_kwargs": written({str(name): one for name, one in arguments.items()})})


TRAINER: Table = {
    **read("trainer_keys").rules,
    "max_steps": max_steps,
    "bf16": bf16(),
    "fp16": _fp16,
    "lr_scheduler_kwargs": _scheduler_options,
    "warmup_ratio": _warmup("warmup_steps", counts=False),
    "warmup_steps": _warmup("warmup_ratio", counts=True),
    "logging_steps": steps("logging_steps"),
    "eval_steps": steps("eval_steps"),
    "save_steps": steps("save_steps"),
    "gradient_checkpointing": _checkpointing,
    "activation_checkpointing": _checkpointing,
    "hub_model_id": _hub_name,
    "report_to": _report_to,
    "pad_token": _own_token,
    "eos_token": _own_token,
}
SHARED: Table = {
    **TRAINER,
    **read("shared_keys").rules,
    "target_modules": targets,
    "max_length": length,
    "tokenizer": _tokenizer,
    "chat_template_kwargs": template_arguments,
}
"""Rules for the sections `like` of the programs' files."""
