"""Keys of Oumi's YAML of a training, with dotted names: `training.learning_rate`."""

from typing import Any

from training.foreign.entries import IS_OFF, Answer, Table, Values, is_off, is_on, only_if, read
from training.foreign.tasks import known_task
from training.foreign.trainer_keys import SHARED, TRAINER, adapter

_IN = "training"  # the section with most keys
_TASKS = {"sft": "sft", "dpo": "dpo", "kto": "kto", "hf": "sft", "oumi": "sft"}
_KEYS = read("oumi", SHARED)
PREFIXES = _KEYS.prefixes


def _task(value: Any, _: Values) -> Answer:
    return Answer({"task": known_task(_kind({f"{_IN}.trainer_type": value}), _TASKS, "trainer_type")})


def _kind(values: Values) -> str:
    return str(values.get(f"{_IN}.trainer_type") or "hf").lower().removeprefix("trl_").removeprefix("verl_")


def _method(_: Any, values: Values) -> Answer:
    if not _adapts(values):
        return Answer({"method": "full"})
    if not is_on(values.get("peft.q_lora")):
        return Answer(adapter(None))
    bits = values.get("peft.q_lora_bits", 4)
    return Answer(adapter(bits) if bits in (4, 8) else None)


def _trackers(_: Any, values: Values) -> Answer:
    on = {"tensorboard": True, "wandb": False, "mlflow": False}
    on = {name: is_on(values.get(f"{_IN}.enable_{name}", default)) for name, default in on.items()}
    return Answer({"report_to": ", ".join(name for name in on if on[name])}) if any(on.values()) else IS_OFF


def _fsdp(value: Any, values: Values) -> Answer:
    if is_off(value):
        return IS_OFF
    unsharded = values.get("fsdp.sharding_strategy") == "NO_SHARD"
    offload = {"offload_param": "cpu"} if is_on(values.get("fsdp.cpu_offload")) and not unsharded else {}
    return Answer({"strategy": "ddp" if unsharded else "fsdp"} | offload)


def _deepspeed(value: Any, values: Values) -> Answer:
    if is_off(value):
        return IS_OFF
    stage = str(values.get("deepspeed.zero_stage", 0)).rpartition("_")[2]
    settings: Values = {"strategy": f"zero{stage}" if stage in ("0", "1", "2", "3") else "zero0"}
    for part in ("offload_optimizer", "offload_param"):
        device = str(values.get(f"deepspeed.{part}.device", "")).lower()
        settings |= {part: device} if device in ("cpu", "nvme") else {}
    return Answer(settings)


def _of_trainer(value: Any, _: Values) -> Answer:
    """trainer_kwargs: arguments of trl's trainer."""
    given = value if isinstance(value, dict) else {}
    names = {"max_seq_length": "max_length", "max_length": "max_length", "beta": "beta"}
    settings = {names[name]: one for name, one in given.items() if name in names}
    settings |= {"packing": "packed"} if is_on(given.get("packing")) else {}
    others = ", ".join(sorted(map(str, given.keys() - names.keys() - {"packing"})))
    return Answer(settings or None, f"{others}: set what they say as settings." if others else "")


def _adapts(values: Values) -> bool:
    return is_on(values.get(f"{_IN}.use_peft"))


_MASKED = "text_completions_only_with_padding"


def _collator(value: Any, values: Values) -> Answer:
    """data.train.collator_name: of text, all tokens carry loss unless it masks the prompts."""
    if _TASKS.get(_kind(values)) != "sft":
        return Answer({}, "belongs to the trainer.")
    masks = value == _MASKED or is_on(values.get("data.train.collator_kwargs.train_on_completions_only"))
    if masks or "'assistant_only': True" in str(values.get("data.train.datasets")):
        return Answer({"train_on_prompt": False})
    return Answer({"train_on_prompt": True}, "all tokens of a row carry loss.")


def defaults(values: Values) -> Values:
    """What Oumi uses if a key is missing."""
    own: Values = {**_KEYS.defaults, "model.model_max_length": None, "data.train.collator_name": None}
    if _adapts(values):
        own |= {"peft.lora_r": 8, "peft.lora_alpha": 8, "peft.lora_dropout": 0.0, "peft.use_bnb_nested_quant": False}
    return own


_OF_LORA = (
    "lora_r",
    "lora_alpha",
    "lora_dropout",
    "lora_target_modules",
    "lora_modules_to_save",
    "lora_bias",
    "lora_init_weights",
)
TABLE: Table = {
    **{f"{_IN}.{name}": rule for name, rule in TRAINER.items()},
    **_KEYS.rules,
    **{f"peft.{name}": only_if(_adapts, _KEYS.rules[f"peft.{name}"], "use_peft is off.") for name in _OF_LORA},
    "peft.use_bnb_nested_quant": only_if(
        lambda values: _adapts(values) and is_on(values.get("peft.q_lora")),
        lambda value, _: Answer({"double_quantization": is_on(value)}),
        "q_lora is off.",
    ),
    "data.train.collator_name": _collator,
    f"{_IN}.trainer_type": _task,
    f"{_IN}.use_peft": _method,
    f"{_IN}.mixed_precision_dtype": lambda value, _: Answer({} if is_off(value) else {"precision": str(value).lower()}),
    f"{_IN}.trainer_kwargs": _of_trainer,
    **{f"{_IN}.enable_{name}": _trackers for name in ("wandb", "mlflow", "tensorboard")},
    "fsdp.enable_fsdp": _fsdp,
    "deepspeed.enable_deepspeed": _deepspeed,
}


def recognizes(values: Values) -> bool:
    """True for Oumi's sections: a model, and either training data or a trainer."""
    model, data, training = (values.get(name) for name in ("model", "data", "training"))
    named = isinstance(model, dict) and "model_name" in model
    trains = (isinstance(data, dict) and "train" in data) or (isinstance(training, dict) and "trainer_type" in training)
    return (named and trains) or "model.model_name" in values
