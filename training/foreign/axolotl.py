"""Keys of axolotl's YAML (0.12 and later), and of its data sets."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.config.choices import PreferenceLoss
from training.config.data_sets import Source
from training.config.name_values import TRACKERS
from training.foreign import data_sets
from training.foreign.data_sets import DataSet
from training.foreign.entries import (
    IS_EMPTY,
    IS_OFF,
    Answer,
    Entry,
    Outcome,
    Rule,
    Table,
    Values,
    is_off,
    is_on,
    names,
    read,
)
from training.foreign.tasks import known_task
from training.foreign.trainer_keys import SHARED, TRAINER, adapter, bf16, steps

_TASKS = {"dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo"}
_MESH = ("dp_shard_size", "dp_replicate_size", "tensor_parallel_size", "context_parallel_size")
_PROJECTS = {"wandb": "wandb_project", "mlflow": "mlflow_experiment_name", "trackio": "trackio_project_name"}
_KEYS = read("axolotl", SHARED)
PREFIXES = _KEYS.prefixes


_SAVES = ("save_steps", "save_strategy", "saves_per_epoch")
_EVALUATES = ("eval_steps", "eval_strategy", "evals_per_epoch", "evaluation_strategy")


def defaults(values: Values) -> Values:
    """What axolotl uses if a key is missing, where Lathe's default is another."""
    own = {"adapter": None, **_KEYS.defaults}
    if not any(values.get(key) for key in _SAVES):
        own["save_strategy"] = "epoch"
    if not any(values.get(key) for key in _EVALUATES) and (values.get("val_set_size") or values.get("test_datasets")):
        own["eval_strategy"] = "no"
    if _is_plain(values):
        own.pop("excess_length_strategy")
    return own


def _is_plain(values: Values) -> bool:
    """True for texts, which axolotl splits into rows of sequence_len as Lathe does."""
    sets = values.get("datasets")
    kinds = {str(one.get("type")) for one in sets if isinstance(one, dict)} if isinstance(sets, list) else set()
    return not is_off(values.get("pretraining_dataset")) or bool(kinds and kinds <= _PLAIN)


def _bits(values: Values) -> str:
    """The bits of quantized weights of an adapter; empty without."""
    if is_off(values.get("adapter")):
        return ""
    return "4" if is_on(values.get("load_in_4bit")) else "8" if is_on(values.get("load_in_8bit")) else ""


def _method(value: Any, values: Values) -> Answer:
    if is_off(value):
        return Answer({"method": "full"})
    if value in ("lora", "qlora"):
        return Answer(adapter(_bits(values) or ("4" if value == "qlora" else "")))
    return Answer(None, "method stays lora.")


def _quantized(bits: str) -> Rule:
    """load_in_4bit, and load_in_8bit, which does not count beside it."""
    return lambda _, values: Answer({"quantization": f"{bits}bit"} if _bits(values) == bits else {})


def _task(value: Any, _: Values) -> Answer:
    if is_off(value):
        return IS_OFF
    task = known_task(value, _TASKS, "rl")
    return Answer({"task": task, "dpo_loss": "ipo"} if value == "ipo" else {"task": task})


def _reward_task(value: Any, _: Values) -> Answer:
    return IS_OFF if is_off(value) else Answer({"task": known_task("prm", _TASKS, "process_reward_model")})


def _trackers(values: Values) -> str:
    """The trackers that the file turns on, by use_... or by their project."""
    named = {name for name, key in _PROJECTS.items() if values.get(key)}
    return ", ".join(name for name in TRACKERS if is_on(values.get(f"use_{name}", name in named)))


def _use_tracker(value: Any, values: Values) -> Answer:
    return Answer({"report_to": _trackers(values)}) if is_on(value) else IS_OFF


def _tracker_project(value: Any, values: Values) -> Answer:
    """The project of a tracker, which axolotl reports to if it is given."""
    trackers = _trackers(values)
    if is_off(value) or not trackers:
        return IS_OFF
    return Answer({"report_to": trackers, "report_project": str(value)})


def _per_epoch(what: str) -> Rule:
    """evals_per_epoch and saves_per_epoch: a share of the whole training."""

    def rule(value: Any, values: Values) -> Answer:
        if not isinstance(value, (int, float)) or value <= 0:
            return Answer({f"{what}_steps": 0}, "is off.")
        if value == 1:
            return Answer({f"{what}_strategy": "epoch"})
        epochs = values.get("num_epochs")
        times = value * (epochs if isinstance(epochs, (int, float)) and epochs > 0 else 1)
        return Answer({f"{what}_steps": 1 / max(1.0001, min(1e4, times))}, "as a share of all steps.")

    return rule


def _targets(value: Any, values: Values) -> Answer:
    """lora_target_modules: a list of names or a pattern, to which lora_target_linear adds every linear module."""
    if is_off(value):
        return IS_EMPTY
    if is_on(values.get("lora_target_linear")):
        return Answer({}, "lora_target_linear adds all linear modules.")
    return Answer({"target_modules": names(value)})


def _unless_by_steps(what: str) -> Rule:
    """eval_strategy and save_strategy, before which axolotl takes the numbers of steps."""

    def rule(value: Any, values: Values) -> Answer:
        number = next((key for key in (f"{what}_steps", f"{what}s_per_epoch") if values.get(key)), None)
        return Answer({}, f"{number} counts before it.") if number else TRAINER[f"{what}_strategy"](value, values)

    return rule


def _bf16(value: Any, values: Values) -> Answer:
    half = next((key for key in ("bfloat16", "float16") if is_on(values.get(key))), None)
    return (
        Answer({}, f"{half} is on.") if half and is_off(value) else bf16(Answer({"precision": "fp32"}))(value, values)
    )


def _losses(value: Any, _: Values) -> Answer:
    name = str(value[0] if isinstance(value, list) and len(value) == 1 else value)
    if is_off(value):
        return IS_OFF
    known = name in tuple(PreferenceLoss)
    return Answer({"dpo_loss": name} if known else None, "" if known else f"Lathe has {', '.join(PreferenceLoss)}.")


def _shards(_: Any, values: Values) -> Answer:
    """dp_shard_size: with the other sizes of the mesh it gives the number of processes."""
    sizes = [values.get(name) or 1 for name in _MESH]
    whole = all(isinstance(size, int) and size > 0 for size in sizes) and values.get("dp_shard_size")
    return Answer({"num_processes": math.prod(sizes)}, f"{' x '.join(_MESH)}.") if whole else IS_EMPTY


def _lowest_rate(value: Any, _: Values) -> Answer:
    return Answer({} if is_off(value) else {"lr_scheduler": "cosine_with_min_lr", "min_lr_ratio": value})


TABLE: Table = {
    **TRAINER,
    **_KEYS.rules,
    "adapter": _method,
    "load_in_4bit": _quantized("4"),
    "load_in_8bit": _quantized("8"),
    "rl": _task,
    "process_reward_model": _reward_task,
    "cosine_min_lr_ratio": _lowest_rate,
    "dp_shard_size": _shards,
    "bf16": _bf16,
    "save_steps": steps("save_steps", counts=True),
    "eval_steps": steps("eval_steps", counts=True),
    "save_strategy": _unless_by_steps("save"),
    "eval_strategy": _unless_by_steps("eval"),
    "dpo_loss_type": _losses,
    "lora_target_modules": _targets,
    "evals_per_epoch": _per_epoch("eval"),
    "saves_per_epoch": _per_epoch("save"),
    **{f"use_{name}": _use_tracker for name in TRACKERS},
    **dict.fromkeys(_PROJECTS.values(), _tracker_project),
}

_PLAIN = {"completion", "pretrain"}
_COLUMNS = {"field_messages": "messages", "field_instruction": "instruction", "field_input": "input", "field_output": "output",
            "field_system": "system", "field": "text", "field_chosen": "chosen", "field_rejected": "rejected"}  # fmt: skip
_ASSISTANT = {"assistant", "gpt", "model", "chatgpt"}
_BY_TEMPLATE = {"None", "chat_template", "completion", "pretrain", "sharegpt", "input_output"}
_NAMING = ("roles", "message_property_mappings", "message_field_role", "message_field_content")
_OF_A_SET = read("axolotl_data_sets").rules
"""Keys of one of axolotl's data sets that become no setting."""
_READ = {*_COLUMNS, "path", "data_files", "type", "message_field_training", "message_field_training_detail", "roles_to_train",
         "train_on_eos", "train_on_eot", "drop_system_message"}  # fmt: skip
_NAMES_OF_MESSAGES = {
    "role", "from", "content", "value", "user", "human", "assistant", "gpt", "model", "system", "tool", "ipython", "tool_calls",
}  # fmt: skip


def datasets(value: Any, _: Values, folder: Path | None, setting: str) -> Answer:
    """axolotl's data sets, each with its format and columns. Without a folder no file is looked up."""
    described = value if isinstance(value, list) else []
    if not described or not all(isinstance(one, dict) for one in described):
        return IS_EMPTY if is_off(value) else Answer(None, "is not a list of data sets.")
    kinds = [str(one.get("type")) for one in described]
    plain = setting == "data" and {*kinds} <= _PLAIN
    settings: Values = {"task": "pretraining"} if plain else {}
    turns = [_turns(one) for one in described] if setting == "data" else []
    for of_turns, _missing in turns:
        settings |= of_turns
    answer = data_sets.answer([_data_set(one, folder) for one in described], setting, settings)
    formats = sorted(kind for kind in kinds if kind not in _BY_TEMPLATE and "{" not in kind)
    notes = [f"{kind} is a format of axolotl; Lathe renders these rows by the chat template." for kind in formats]
    notes += [note for _settings, missing in turns for note in missing]
    return replace(answer, note=" ".join([answer.note, *dict.fromkeys(notes)]).strip())


def keys_of_sets(key: str, value: Any) -> list[Entry]:
    """Entries for the keys of axolotl's data sets that become no setting, so that none is lost."""
    entries = []
    for number, described in enumerate(value if isinstance(value, list) else []):
        whole = described if isinstance(described, dict) else {}
        kind = whole.get("type")
        nested = {f"type.{name}": one for name, one in kind.items()} if isinstance(kind, dict) else {}
        for name, given in (whole | nested).items():
            plain = str(name).removeprefix("type.")
            usual = plain in _NAMING and _usual_names(given if isinstance(given, dict) else {plain: given})
            if plain in _READ or is_off(given) or usual:
                continue
            rule = _OF_A_SET.get(plain)
            answer = (
                rule(given, whole) if rule else Answer(None, "Lathe does not know this key of axolotl's data sets.")
            )
            outcome = Outcome.UNSUPPORTED if answer.settings is None else Outcome.NO_EFFECT
            entries.append(Entry(f"{key}[{number}].{name}", given, outcome, note=answer.note))
    return entries


def _usual_names(named: Any) -> bool:
    """True if roles and fields of messages have names that Lathe finds by itself."""
    values = named.values() if isinstance(named, dict) else [""]
    parts = [part for value in values for part in (value if isinstance(value, list) else [value])]
    return {str(part).lower() for part in parts} <= _NAMES_OF_MESSAGES


def _data_set(described: Values, folder: Path | None) -> DataSet:
    files = described.get("data_files")
    name = str((files[0] if isinstance(files, list) and files else files) or described.get("path") or "")
    kind = described.get("type")
    fields = {**described, **kind} if isinstance(kind, dict) else described
    columns = data_sets.mapping({role: str(fields[field]) for field, role in _COLUMNS.items() if fields.get(field)})
    if folder is not None and data_sets.is_file(folder / name):
        return DataSet(Source(str(folder / name), columns=columns))
    on_hub = name.count("/") == 1 and "." not in name.split("/")[1][-6:]
    missing = data_sets.UPLOAD if folder is None else f"{name} is not here."
    return DataSet(Source("", columns=columns), data_sets.ON_HUB.format(name) if on_hub else missing)


def _turns(described: Values) -> tuple[Values, list[str]]:
    """The settings for the turns with loss of one of axolotl's data sets, and what Lathe does not have of them."""
    settings: Values = {}
    missing: list[str] = []
    if field := described.get("message_field_training"):
        settings = {"loss_on": "field", "loss_field": str(field)}
    roles = described.get("roles_to_train")
    if others := sorted({str(role) for role in roles} - _ASSISTANT) if isinstance(roles, list) else []:
        carry = "in Lathe assistant turns, or with train_on_prompt all tokens, carry loss."
        missing.append(f"roles_to_train {', '.join(others)}: {carry}")
    for key in ("train_on_eos", "train_on_eot"):
        if described.get(key) not in (None, "turn"):
            missing.append(f"{key} {described[key]}: in Lathe the end token of each turn with loss carries loss.")
    if described.get("message_field_training_detail"):
        missing.append("message_field_training_detail: Lathe selects whole turns.")
    if is_on(described.get("drop_system_message")):
        missing.append("drop_system_message: remove the system messages from the data.")
    return settings, missing
