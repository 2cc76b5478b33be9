"""Takes strategy, offload, precision and sizes from DeepSpeed JSON and FSDP sections: in place, as text, or by a file's name."""

import re
from collections.abc import Callable
from typing import Any

from training.config import yaml_text
from training.deepspeed_file import reader as deepspeed_reader
from training.foreign.entries import IS_EMPTY, IS_OFF, Answer, Rule, Table, Values, is_off, is_on, names, read

_USUAL_IN_OTHERS = {"model", "model_name_or_path", "base_model", "learning_rate", "lr"}  # and never in a DeepSpeed JSON
FSDP_NAMES = frozenset({
    "transformer_layer_cls_to_wrap", "auto_wrap_policy", "backward_prefetch", "forward_prefetch", "sharding_strategy",
    "state_dict_type", "use_orig_params", "sync_module_states", "cpu_ram_efficient_loading", "offload_params",
    "activation_checkpointing", "limit_all_gathers", "min_num_params", "version", "reshard_after_forward", "xla", "xla_fsdp_v2",
    "xla_fsdp_grad_ckpt",
})  # fmt: skip
_OF_PROGRAMS = (
    r"(?:\./)?(?:deepspeed_configs/zero|examples/deepspeed/ds_z)([0-3])"
    r"(?:_bf16)?(_offload|_cpuoffload_all)?(?:_config)?\.json"
)
"""Files that axolotl and LLaMA-Factory bring."""


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


def number(setting: str, otherwise: str) -> Rule:
    """A rule for a number, which may be "auto" instead."""

    def rule(value: Any, _: Values) -> Answer:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return Answer({setting: value}) if is_number else Answer({}, otherwise)

    return rule


def _optimizer(value: Any, _: Values) -> Answer:
    params = _section(_section(value).get("params"))
    given = {"learning_rate": params.get("lr"), "weight_decay": params.get("weight_decay")}
    return Answer({name: one for name, one in given.items() if isinstance(one, float)}, "Lathe uses its own optimizer.")


def _precision(name: str) -> Rule:
    return lambda value, _: Answer({"precision": name}) if is_on(_section(value).get("enabled")) else IS_OFF


_SIZES = {
    "gradient_clipping": "max_grad_norm",
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
DEEPSPEED: Table = {
    "zero_optimization": _zero,
    "optimizer": _optimizer,
    "bf16": _precision("bf16"),
    "fp16": _precision("fp16"),
    **{key: number(setting, "is left to the run's settings.") for key, setting in _SIZES.items()},
    **read("deepspeed").rules,
}
DEEPSPEED_OTHERS: Table = {"": lambda _, __: Answer(None, "to keep it, give the whole file as deepspeed_config.")}


def from_name(name: str) -> Values | None:
    """The settings of a configuration that trl or ms-swift brings, such as zero3 or zero2_offload; None if they bring none."""
    match = re.fullmatch(r"zero([0-3])(_offload)?", name) or re.fullmatch(_OF_PROGRAMS, name)
    if match is None:
        strategy = {"fsdp1": "fsdp", "fsdp2": "fsdp", "multi_gpu": "ddp"}.get(name)
        return {"strategy": strategy} if strategy else None
    settings: Values = {"strategy": f"zero{match.group(1)}"}
    if match.group(2):
        settings["offload_optimizer"] = "cpu"
        settings |= {"offload_param": "cpu"} if match.group(1) == "3" else {}
    return settings


def from_deepspeed(file: Values) -> Values:
    """The settings that a DeepSpeed JSON gives; "auto" gives none."""
    settings: Values = {"strategy": "zero0"}  # unless it has a section zero_optimization
    for key, rule in DEEPSPEED.items():
        if key in file:
            settings |= rule(file[key], file).settings or {}
    return settings


def from_zero(section: Values) -> Values:
    """The settings that accelerate's options of ZeRO give: `zero_stage`, which is 2 by default, offload, accumulation, clipping."""
    stage = str(section.get("zero_stage", 2))
    settings: Values = {"strategy": f"zero{stage}" if stage in ("0", "1", "2", "3") else "zero2"}
    for name in ("offload_optimizer", "offload_param"):
        if section.get(f"{name}_device") in ("cpu", "nvme"):
            settings[name] = section[f"{name}_device"]
    for name in ("gradient_accumulation_steps", "gradient_clipping"):
        settings |= DEEPSPEED[name](section.get(name), section).settings or {}
    return settings


def from_fsdp(section: Values, words: str = "") -> Values:
    """The settings that an FSDP section of accelerate, transformers or axolotl gives, and transformers' `words` of fsdp."""
    plain = {str(name).removeprefix("fsdp_"): section[name] for name in sorted(section, key=str)}
    unsharded = str(plain.get("sharding_strategy")).upper() in ("NO_SHARD", "3") or "no_shard" in words
    settings: Values = {"strategy": "ddp" if unsharded else "fsdp"}
    if is_on(plain.get("offload_params")) or "offload" in words:
        settings["offload_param"] = "cpu"
    if is_on(plain.get("activation_checkpointing")):
        settings["gradient_checkpointing"] = "full"
    return settings


FSDP: Table = dict.fromkeys(
    (f"{start}{name}" for start in ("", "fsdp_") for name in FSDP_NAMES), lambda _, values: Answer(from_fsdp(values))
)
"""Keys of an FSDP section in a file of its own."""


def looks_like_deepspeed(values: Any) -> bool:
    """True if the values are a DeepSpeed JSON."""
    if not isinstance(values, dict):
        return False
    sized = "train_batch_size" in values and not _USUAL_IN_OTHERS & values.keys()
    return sized or "zero_optimization" in values or "train_micro_batch_size_per_gpu" in values


def _section(value: Any) -> Values:
    return value if isinstance(value, dict) else {}


Reader = Callable[[str], str | None]
"""The text of a named file; None if it is not here."""


def of_fsdp(words: Any, section: Any, reader: Reader) -> Answer:
    """The settings of fsdp, words such as `full_shard offload`, together with those of fsdp_config, a section or a file's name."""
    note = ""
    if isinstance(section, str):
        text = reader(section)
        note = "" if text is not None else f"{section[:200]} is not here. Import that file too."
        try:
            section = yaml_text.load(text or "")
        except yaml_text.YamlTextError:
            section = None
    parts = [part for part in (section, words) if isinstance(part, dict)]
    together = {name: value for part in parts for name, value in part.items()}
    return Answer(from_fsdp(together, "" if isinstance(words, dict) else names(words).lower()), note)


def of_deepspeed(value: Any, reader: Reader) -> Answer:
    """The settings of a DeepSpeed JSON: in place, as text, as the name of a file, or of one that the program brings."""
    if is_off(value):
        return IS_EMPTY
    if isinstance(value, dict) and "deepspeed_config_file" in value:
        return of_deepspeed(value["deepspeed_config_file"], reader)
    if isinstance(value, dict):
        return Answer(from_deepspeed(value) if looks_like_deepspeed(value) else from_zero(value))
    name = str(value)
    text = name if name.lstrip().startswith("{") else reader(name)
    if text is not None:
        return _of_json(text, name)
    settings = from_name(name)
    return Answer(settings, "" if settings else f"{name[:200]} is not here. Import that file too, or set strategy.")


def _of_json(text: str, name: str) -> Answer:
    try:
        file = deepspeed_reader.read(text).values
    except deepspeed_reader.LooseJsonError as error:
        return Answer(None, f"{name} is not valid JSON: {error}.")
    return Answer(from_deepspeed(file)) if looks_like_deepspeed(file) else Answer(None, f"{name} is no DeepSpeed file.")
