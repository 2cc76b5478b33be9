"""Keys of LLaMA-Factory's YAML (v0.9), and its data sets."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from training.config.choices import Method
from training.config.data_sets import Source
from training.foreign import data_sets
from training.foreign.data_sets import DataSet
from training.foreign.entries import IS_EMPTY, IS_OFF, Answer, Table, Values, is_off, is_on, read
from training.foreign.launch_keys import OF_TRL
from training.foreign.llamafactory_1 import DEFAULTS_OF_0, FIRST, defaults_of_1, is_version_1
from training.foreign.tasks import known_task, refuse
from training.foreign.trainer_keys import COMMAND, SHARED, TRAINER, adapter, bf16, summed, template_arguments

_STAGES = {"sft": "sft", "pt": "pretraining", "dpo": "dpo", "kto": "kto", "rm": "reward"}
_KEYS = read("llamafactory", SHARED)
PREFIXES = _KEYS.prefixes


def defaults(values: Values) -> Values:
    """What LLaMA-Factory uses if a key is missing, where Lathe's default is another; its script before 0.7 has other lengths."""
    command = str(values.get(COMMAND, ""))
    own = {**_KEYS.defaults, "lora_alpha": None} | ({"cutoff_len": 1024} if "train_bash" in command else {})
    if values.get("stage") == "pt" and not is_on(values.get("neat_packing")):
        own["packing"] = True
    if not is_off(values.get("val_size")) or values.get("eval_dataset"):
        own["eval_strategy"] = "no"
    if "evaluation_strategy" in values:
        own.pop("eval_strategy", None)
    if is_version_1(values):
        own = {name: value for name, value in own.items() if name not in DEFAULTS_OF_0} | defaults_of_1(values)
    starts = command.startswith(("llamafactory-cli", "lmf"))  # which start a process on each device
    return own | ({"num_processes": None} if starts and "num_processes" not in values else {})


def _stage(value: Any, values: Values) -> Answer:
    if value is None:
        return IS_EMPTY
    task, loss = known_task(value, _STAGES, "stage"), str(values.get("pref_loss"))
    if task == "dpo":
        refuse(loss, f"pref_loss: {loss}")
    return Answer({"task": "orpo" if task == "dpo" and loss == "orpo" else task})


def _method(value: Any, values: Values) -> Answer:
    bits = values.get("quantization_bit")
    if value is None:
        return IS_EMPTY
    if value == "full":
        return Answer({"method": "full"})
    if value == "freeze":
        layers = values.get("freeze_trainable_layers", 2)
        if isinstance(layers, int) and layers > 0:
            return Answer({"method": "full", "trainable_layers": layers})
    if value not in list(Method):
        return Answer(None, "Lathe has full, lora, qlora and PEFT's methods; method stays lora.")
    settings = adapter(bits if bits in (4, 8) else None)
    return Answer(settings if value == "lora" else settings | {"method": value})


def _alpha(value: Any, values: Values) -> Answer:
    rank = values.get("lora_rank")
    return Answer({"lora_alpha": value if value is not None else 2 * (rank if isinstance(rank, int) else 8)})


def _packing(value: Any, values: Values) -> Answer:
    if is_on(value) or is_on(values.get("neat_packing")):  # which turns packing on
        return Answer({"packing": "packed"})
    return Answer({"packing": "none"})


def _neat_packing(value: Any, values: Values) -> Answer:
    return _packing(value, values) if is_on(value) else Answer({}, "Lathe never lets packed rows attend to each other.")


_SUMMED = summed(max_source_length=512, max_target_length=512)


def _source_length(value: Any, values: Values) -> Answer:
    """max_source_length of versions before 0.7: the whole length of a text that is continued, else that of the prompt."""
    return Answer({"max_length": value}) if values.get("stage") == "pt" else _SUMMED(value, values)


def _target_length(value: Any, values: Values) -> Answer:
    if values.get("stage") == "pt":
        return Answer({}, "is not read with stage: pt, whose texts have no answer.")
    return _SUMMED(value, values)


def _pissa(value: Any, values: Values) -> Answer:
    rounds = values.get("pissa_iter", 16)
    kind = "pissa" if rounds == -1 else "pissa_niter_4" if rounds == 4 else "pissa_niter_16"
    return Answer({"lora_init": kind}) if is_on(value) else IS_OFF


def _loss(value: Any, values: Values) -> Answer:
    return Answer({}, "gives the task orpo.") if value == "orpo" else _KEYS.rules["pref_loss"](value, values)


def _thinking(value: Any, values: Values) -> Answer:
    if value is None:
        return IS_EMPTY
    others = template_arguments(values.get("chat_template_kwargs"), values).settings or {}
    earlier = others.get("chat_template_kwargs")
    argument = f"enable_thinking={'true' if is_on(value) else 'false'}"
    return Answer({"chat_template_kwargs": f"{earlier}, {argument}" if earlier else argument})


TABLE: Table = {
    **TRAINER,
    **_KEYS.rules,
    "num_processes": OF_TRL["num_processes"],
    "ray_num_workers": lambda value, _: Answer({"num_processes": value} if isinstance(value, int) else {}),
    **FIRST,
    "stage": _stage,
    "finetuning_type": _method,
    "lora_alpha": _alpha,
    "pissa_init": _pissa,
    "max_source_length": _source_length,
    "max_target_length": _target_length,
    "packing": _packing,
    "neat_packing": _neat_packing,
    "bf16": bf16(Answer({"precision": "auto"}, "is off: the format of the model's weights decides.")),
    "enable_thinking": _thinking,
    "pref_loss": _loss,
}

_INFO = "dataset_info.json"
_ROLES = {  # column of dataset_info.json: role of Lathe's mapping
    "prompt": "instruction", "query": "input", "response": "output", "system": "system", "messages": "messages", "tools": "tools",
    "chosen": "chosen", "rejected": "rejected", "kto_tag": "label",
}  # fmt: skip


def datasets(value: Any, values: Values, folder: Path | None, setting: str) -> Answer:
    """LLaMA-Factory's data sets, as its dataset_info.json describes them, with the weights of interleave_probs."""
    if folder is None:
        return Answer(None, data_sets.UPLOAD)
    named = [str(name).strip() for name in (value if isinstance(value, list) else str(value or "").split(","))]
    named = [name for name in named if name]
    if not named:
        return IS_EMPTY
    info = _info(folder, str(values.get("dataset_dir") or "data"))
    found = [_data_set(name, folder, info, setting) for name in named]
    weights = _weights(values, len(named)) if setting == "data" else [None] * len(named)
    weighted = [
        replace(one, source=one.source and replace(one.source, weight=weight))
        for one, weight in zip(found, weights, strict=True)
    ]
    return data_sets.answer(weighted, setting)


def _data_set(name: str, folder: Path, info: Path | None, setting: str) -> DataSet:
    if data_sets.is_file(folder / name):
        return DataSet(Source(str(folder / name)))
    if info is None:
        return DataSet(None, f"{_INFO}, which names the file of {name}, is not here. Set {setting} to the file.")
    described = _entry(info, name)
    if described is None:
        return DataSet(None, f"{info} has no entry {name}.")
    if "file_name" not in described:
        on_hub = described.get("hf_hub_url") or described.get("ms_hub_url") or name
        return DataSet(None, data_sets.ON_HUB.format(on_hub))
    named = described.get("columns")
    listed = named.items() if isinstance(named, dict) else ()
    columns = data_sets.mapping({_ROLES[column]: str(path) for column, path in listed if column in _ROLES and path})
    rows = described.get("num_samples")
    most = rows if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0 else None
    return DataSet(Source(str(info.parent / str(described["file_name"])), max_rows=most, columns=columns))


def _weights(values: Values, count: int) -> list[float | None]:
    """The weights of interleaved data sets; without probabilities they alternate."""
    if not str(values.get("mix_strategy") or "").startswith("interleave") or count < 2:
        return [None] * count
    given = values.get("interleave_probs")
    listed = given if isinstance(given, list) else str(given or "").split(",")
    try:
        weights = [float(one) for one in listed if str(one).strip()]
    except (TypeError, ValueError):
        weights = []
    return [*weights] if len(weights) == count and min(weights) > 0 else [1.0] * count


def _entry(info: Path, name: str) -> dict[str, Any] | None:
    """The entry of a data set in dataset_info.json; None if there is none, or the file cannot be read."""
    try:
        listed = json.loads(info.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    described = listed.get(name) if isinstance(listed, dict) else None
    return described if isinstance(described, dict) else None


def _info(folder: Path, named: str) -> Path | None:
    """dataset_info.json in the folder that the file names, from the file's folder upwards."""
    paths = [above / part / _INFO for above in (folder, *folder.parents) for part in (named, ".")]
    return next((path for path in paths if data_sets.is_file(path)), None)
