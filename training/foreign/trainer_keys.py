"""Keys of transformers' TrainingArguments, which LLaMA-Factory, axolotl and trl share."""

from typing import Any

from training.config.name_lists import TRACKERS
from training.foreign.entries import Answer, Rule, Table, Values, choice, flag, is_off, is_on
from training.foreign.key_files import read

SCHEDULERS = {
    "linear": "linear", "cosine": "cosine", "constant": "constant", "constant_with_warmup": "constant_with_warmup",
    "cosine_with_restarts": "cosine_with_restarts", "polynomial": "polynomial", "inverse_sqrt": "inverse_sqrt",
    "warmup_stable_decay": "wsd", "wsd": "wsd", "cosine_with_min_lr": "cosine_with_min_lr",
    "cosine_warmup_with_min_lr": "cosine_with_min_lr", "reduce_lr_on_plateau": "reduce_on_plateau",
}  # fmt: skip
OPTIMIZERS = {
    "adamw_torch": "adamw", "adamw_torch_fused": "adamw", "adamw_hf": "adamw", "adamw_apex_fused": "adamw", "adamw": "adamw",
    "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit", "paged_adamw_8bit": "paged_adamw_8bit",
    "paged_adamw_32bit": "paged_adamw_32bit", "paged_adamw": "paged_adamw_32bit", "adamw_torch_8bit": "adamw_torchao_8bit",
    "ao_adamw_8bit": "adamw_torchao_8bit", "adamw_torch_4bit": "adamw_torchao_4bit", "ao_adamw_4bit": "adamw_torchao_4bit",
    "adamw_anyprecision": "adamw_anyprecision", "adafactor": "adafactor", "lion": "lion", "lion_32bit": "lion",
    "lion_pytorch": "lion", "lion_8bit": "lion_8bit", "muon": "muon", "sgd": "sgd",
}  # fmt: skip
ATTENTION = {
    "eager": "eager", "sdpa": "sdpa", "flash_attention_2": "flash_attention_2", "fa2": "flash_attention_2", "auto": "auto",
    "flash_attention_3": "flash_attention_3", "fa3": "flash_attention_3", "flex_attention": "flex_attention", "disabled": "eager",
}  # fmt: skip

COMMAND = "command"
"""The command that a program's arguments are of, as a key of their own: `trl dpo`, `scripts/run_sft.py`."""
FILE = "file"
"""The path of a file of arguments, where its name says the task."""
NO_LENGTH = "Lathe always truncates; set max_length to the longest sequence of the model."
IN_LATHE = "Lathe decides this itself."


def warmup(value: Any, values: Values) -> Answer:
    """warmup_ratio and warmup_steps: a share below 1, or a number of steps."""
    steps = values.get("warmup_steps")
    if values.get("warmup_ratio") == value and not is_off(steps) and steps:
        return Answer({}, "warmup_steps is given too, which counts.")
    return Answer({"warmup": value or 0})


def lengths(_: Any, values: Values) -> Answer:
    """max_source_length and max_target_length of a model that continues a text: their sum."""
    source, target = values.get("max_source_length", 512), values.get("max_target_length", 512)
    whole = isinstance(source, int) and isinstance(target, int)
    return Answer({"max_length": source + target} if whole else None, "the sum of both.")


def max_steps(value: Any, _: Values) -> Answer:
    return Answer({"max_steps": value}) if isinstance(value, int) and value > 0 else Answer({}, "means no limit.")


def interval(what: str) -> Rule:
    """eval_strategy and save_strategy."""

    def rule(value: Any, _: Values) -> Answer:
        if is_off(value):
            return Answer({f"{what}_steps": 0}, "is off.")
        if str(value) in ("steps", "epoch"):
            return Answer({f"{what}_strategy": str(value)})
        return Answer(None, f"Lathe has steps and epoch; {what}_strategy stays steps.")

    return rule


def steps(setting: str) -> Rule:
    """eval_steps, save_steps and logging_steps, unless they are off."""
    return lambda value, _: Answer({setting: value}) if isinstance(value, (int, float)) else Answer({}, "is empty.")


def checkpointing(value: Any, values: Values) -> Answer:
    """gradient_checkpointing: true, false, or a kind of it."""
    if is_off(value):
        return Answer({"gradient_checkpointing": "none"})
    offloads = "offload" in str(value) or str(value) == "unsloth" or is_on(values.get("activation_offloading"))
    return Answer({"gradient_checkpointing": "offloaded" if offloads else "full"})


def _scheduler_options(value: Any, values: Values) -> Answer:
    """lr_scheduler_kwargs: the lowest rate, the cycles, the share of the decay."""
    if not isinstance(value, dict) or not value:
        return Answer({}, "is empty.") if is_off(value) else Answer(None, "is not a mapping.")
    rate = next((given for key, given in values.items() if key.rpartition(".")[2] == "learning_rate"), None)
    settings: Values = {}
    for name, given in value.items():
        if name in ("min_lr_rate", "min_lr_ratio"):
            settings["min_lr_ratio"] = given
        elif name == "min_lr" and isinstance(given, (int, float)) and isinstance(rate, (int, float)) and rate > 0:
            settings["min_lr_ratio"] = given / rate
        elif name == "num_cycles" and isinstance(given, int):
            settings["lr_cycles"] = given
        else:
            return Answer(
                settings or None, f"{name} is not supported; Lathe has min_lr_ratio, lr_cycles and decay_share."
            )
    return Answer(settings)


def _hub_name(value: Any, values: Values) -> Answer:
    """hub_model_id, which has an effect with push_to_hub only."""
    if is_off(value) or not is_on(values.get("push_to_hub")):
        return Answer({}, "push_to_hub is off.")
    if "/" not in str(value):
        return Answer(None, "give push_to_hub with the owner of the repository: owner/name.")
    return Answer({"push_to_hub": value})


def _dtype(value: Any, _: Values) -> Answer:
    """torch_dtype: the format of the stored weights."""
    name = {
        "bfloat16": "bf16",
        "bf16": "bf16",
        "float16": "fp16",
        "fp16": "fp16",
        "float32": "fp32",
        "fp32": "fp32",
    }.get(str(value))
    return (
        Answer({"weights_precision": name})
        if name == "bf16"
        else Answer({}, "precision and weights_precision say this.")
    )


DTYPE: Rule = _dtype
LIGER: Rule = flag(
    {"chunked_loss": "auto"}, note="it does what Liger's loss does; Liger's other kernels change no numbers."
)


def _sampling(value: Any, _: Values) -> Answer:
    return Answer(
        {"batch_order": "by_length"} if value == "group_by_length" else {}, "Lathe shuffles the rows of each epoch."
    )


def report_to(value: Any, _: Values) -> Answer:
    """report_to: the trackers that Lathe has."""
    given = [str(name).strip().lower() for name in (value if isinstance(value, list) else str(value or "").split(","))]
    known = [name for name in given if name in TRACKERS]
    others = ", ".join(name for name in given if name not in (*TRACKERS, "none", ""))
    note = f"Lathe does not report to {others}." if others and others != "all" else ""
    if others == "all":
        return Answer({}, "means every installed tracker; name those that you use.")
    if not known:
        return Answer(None, note) if note else Answer({}, "is off.")
    return Answer({"report_to": ", ".join(known)}, note)


def _best(value: Any, _: Values) -> Answer:
    if value in (None, "", "loss", "eval_loss"):
        return Answer({}, "is the evaluation loss in Lathe.")
    return Answer(None, "Lathe keeps the checkpoint with the lowest evaluation loss.")


def _project(value: Any, _: Values) -> Answer:
    """The project, which in a dump of the arguments has transformers' default."""
    return Answer({}, "is the default.") if value in (None, "", "huggingface") else Answer({"report_project": value})


def _own_token(value: Any, _: Values) -> Answer:
    """A token of one's own; a dump of the arguments has a stand-in where none is given."""
    if is_off(value) or str(value).startswith("<"):
        return Answer({}, "is the tokenizer's.")
    return Answer(None, "Lathe uses the tokenizer's own; change it in tokenizer_config.json.")


TRAINER: Table = {
    **read("trainer_keys")[0],
    "max_steps": max_steps,
    "lr_scheduler_type": choice("lr_scheduler", SCHEDULERS, "cosine"),
    "lr_scheduler_kwargs": _scheduler_options,
    "warmup_ratio": warmup,
    "warmup_steps": warmup,
    "optim": choice("optimizer", OPTIMIZERS, "adamw"),
    "logging_steps": steps("logging_steps"),
    "eval_steps": steps("eval_steps"),
    "save_steps": steps("save_steps"),
    "eval_strategy": interval("eval"),
    "evaluation_strategy": interval("eval"),
    "save_strategy": interval("save"),
    "metric_for_best_model": _best,
    "bf16": choice("precision", {"true": "bf16", "auto": "auto", "full": "bf16", "false": "auto"}),
    "gradient_checkpointing": checkpointing,
    "activation_checkpointing": checkpointing,
    "hub_model_id": _hub_name,
    "report_to": report_to,
    "project": _project,
    "train_sampling_strategy": _sampling,
    "pad_token": _own_token,
    "eos_token": _own_token,
}
