"""Keys of torchtune's YAML (0.4 to 0.6), with dotted names: `optimizer.lr`."""

import re
from typing import Any

from training.foreign.entries import IS_OFF, Answer, Rule, Table, Values, is_off, is_on, read, to
from training.foreign.tasks import refuse
from training.foreign.trainer_keys import COMMAND, SHARED, adapter, max_steps

_MODULES = {"output_proj": "o_proj"}
_MLP = ("gate_proj", "up_proj", "down_proj")
_OPTIMIZERS = {
    "AdamW": "adamw", "PagedAdamW": "paged_adamw_32bit", "PagedAdamW8bit": "paged_adamw_8bit", "AdamW8bit": "adamw_8bit",
    "SGD": "sgd", "Adafactor": "adafactor", "Lion": "lion",
}  # fmt: skip
_SCHEDULERS = {"get_cosine_schedule_with_warmup": "cosine", "get_linear_schedule_with_warmup": "linear"}
_WITH_PROMPT = ("alpaca_dataset", "alpaca_cleaned_dataset")
"""Data sets whose prompts carry loss unless `train_on_input` says otherwise."""
_COMPONENT = "_component_"
_KEYS = read("torchtune", SHARED)
PREFIXES = _KEYS.prefixes


def _component(values: Values, section: str) -> str:
    """The last name of a section's component: `torchtune.models.gemma.lora_gemma_2b` is lora_gemma_2b."""
    return str(values.get(f"{section}.{_COMPONENT}", "")).rpartition(".")[2]


def task_of(values: Values) -> str:
    """The task that recipe, loss and data set say. Raises UserError if it is one that Lathe does not train."""
    recipe = str(values.get(COMMAND, ""))
    for word in recipe.replace("_", " ").split():
        refuse("distillation" if word in ("kd", "knowledge") else word, recipe)
    loss = _component(values, "loss")
    for name in ("PPO", "GRPO", "SimPO"):
        if name.lower() in loss.lower():
            refuse(name, loss)
    if any(mark in str(value) for value in values.values() for mark in (".grpo.", ".rl.", ".ppo.")):
        refuse("grpo", "torchtune.dev.grpo")
    if "kd_loss" in values or f"kd_loss.{_COMPONENT}" in values:
        refuse("distillation", "kd_loss")
    if "dpo" in recipe or "DPO" in loss:
        return "dpo"
    return "pretraining" if _component(values, "dataset") == "text_completion_dataset" else "sft"


def _method(_: Any, values: Values) -> Answer:
    builder = _component(values, "model")
    if builder.startswith("qlora_") or is_on(values.get("model.quantize_base")):
        return Answer(adapter(4))
    return Answer(adapter(None) if _is_lora(values) else {"method": "full"})


def _is_lora(values: Values) -> bool:
    """True for a builder with an adapter, of which qlora_ quantizes the other weights."""
    return _component(values, "model").startswith(("lora_", "dora_", "qlora_")) or "model.lora_rank" in values


def _targets(value: Any, values: Values) -> Answer:
    modules = [_MODULES.get(str(name), str(name)) for name in (value if isinstance(value, list) else [value])]
    modules += _MLP if is_on(values.get("model.apply_lora_to_mlp")) else ()
    modules += ("lm_head",) if is_on(values.get("model.apply_lora_to_output")) else ()
    return Answer({"target_modules": ",".join(modules)})


def _choice(setting: str, section: str, names: dict[str, str]) -> Rule:
    def rule(_: Any, values: Values) -> Answer:
        chosen = names.get(_component(values, section))
        return (
            Answer({setting: chosen}) if chosen else Answer(None, f"Lathe has {', '.join(sorted({*names.values()}))}.")
        )

    return rule


def _scheduler(value: Any, values: Values) -> Answer:
    """The schedule; torchtune's rate is constant without one."""
    if is_off(value):
        return Answer({"lr_scheduler": "constant", "warmup": 0})
    return _choice("lr_scheduler", "lr_scheduler", _SCHEDULERS)(value, values)


def _data(_: Any, values: Values) -> Answer:
    """The component of a data set, which says how rows are rendered; its file is `dataset.data_files`."""
    return Answer({"task": task_of(values)}, "Lathe renders rows by the chat template.")


def _split(value: Any, values: Values) -> Answer:
    """dataset.split: of `train[:95%]` beside a validation set of the rest, that rest is held out; other parts are not read."""
    first, rest = (re.fullmatch(r"\w+(\[.*\])?", str(name)) for name in (value, values.get("dataset_val.split")))
    part = first.group(1) if first else None
    if not part:
        return Answer({}, "belongs to dataset.source.")
    share = re.fullmatch(r"\[:(\d{1,2})%\]", part)
    if share and rest and rest.group(1) == f"[{share.group(1)}%:]":
        return Answer({"eval_split": (100 - int(share.group(1))) / 100}, "dataset_val has the other rows.")
    return Answer(None, f"trains on the part {part} of the rows; set data_slice or max_samples.")


def _held_out(value: Any, values: Values) -> Answer:
    """A key of dataset_val, whose rows dataset.split may leave for it."""
    if is_off(value):
        return IS_OFF
    split = _split(values.get("dataset.split"), values).settings if values.get("dataset.split") else None
    same = values.get(f"dataset_val.{_COMPONENT}") in (None, values.get(f"dataset.{_COMPONENT}"))
    return (
        Answer({}, "dataset.split leaves these rows.")
        if split and same
        else Answer(None, "set validation_data or eval_split.")
    )


def _steps(value: Any, values: Values) -> Answer:
    epochs = values.get("epochs", 1)
    if not isinstance(value, int) or not isinstance(epochs, int):
        return max_steps(value, values)
    return Answer({"max_steps": value * epochs}, "in all epochs.")


def _recipe(value: Any, values: Values) -> Answer:
    """The command `tune run RECIPE`; recipes for several devices use FSDP."""
    several = "distributed" in str(value) and values.get("num_processes", 2) != 1
    return Answer({"task": task_of(values)} | ({"strategy": "fsdp"} if several else {}))


def defaults(values: Values) -> Values:
    """What torchtune uses if a key is missing."""
    own: Values = {"gradient_accumulation_steps": 1, "clip_grad_norm": None, f"lr_scheduler.{_COMPONENT}": None, "held_out": 0,
                   "tokenizer.max_seq_len": None, "optimizer.weight_decay": 0.01}  # fmt: skip
    if "AdamW" not in _component(values, "optimizer"):
        own.pop("optimizer.weight_decay")
    if _is_lora(values):
        own |= {"model.lora_rank": 8, "model.lora_alpha": 16, "model.lora_dropout": 0.0}
    if _component(values, "dataset") in _WITH_PROMPT:
        own["dataset.train_on_input"] = True
    return own


TABLE: Table = {
    **_KEYS.rules,
    COMMAND: _recipe,
    f"model.{_COMPONENT}": _method,
    "model.lora_attn_modules": _targets,
    "checkpointer.checkpoint_dir": to("model", "the folder with the model."),
    f"dataset.{_COMPONENT}": _data,
    "dataset.split": _split,
    **{f"dataset_val.{name}": _held_out for name in (_COMPONENT, "split", "source", "packed", "column_map")},
    "max_steps_per_epoch": _steps,
    f"optimizer.{_COMPONENT}": _choice("optimizer", "optimizer", _OPTIMIZERS),
    f"lr_scheduler.{_COMPONENT}": _scheduler,
}


def recognizes(values: Values) -> bool:
    """True for torchtune's sections, which name components."""
    sections = [values.get(name) for name in ("model", "tokenizer", "optimizer", "checkpointer")]
    named = any(isinstance(section, dict) and _COMPONENT in section for section in sections)
    return (named and "optimizer" in values) or f"model.{_COMPONENT}" in values
