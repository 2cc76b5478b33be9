"""Keys of Oumi's YAML of a training, with dotted names: `training.learning_rate`."""

from typing import Any

from training.config.choices import MixUntil
from training.foreign.chat_keys import template_kwargs
from training.foreign.entries import Answer, Rule, Table, Values, choice, is_off, is_on, listed, to, usual
from training.foreign.key_files import read
from training.foreign.tasks import known_task
from training.foreign.trainer_keys import ATTENTION, DTYPE, LIGER, NO_LENGTH, TRAINER

_IN = "training"  # the section with most keys
_TASKS = {"sft": "sft", "dpo": "dpo", "kto": "kto", "hf": "sft", "oumi": "sft"}
_INITS = {"default": "default", "gaussian": "gaussian", "pissa": "pissa", "olora": "olora", "loftq": "loftq"}
_DATA = "set data to the file, or import the data set of the hub on the page Data sets."


def _task(value: Any, _: Values) -> Answer:
    kind = str(value).lower().removeprefix("trl_").removeprefix("verl_")
    return Answer({"task": known_task(kind, _TASKS, "trainer_type")})


def _method(_: Any, values: Values) -> Answer:
    if not is_on(values.get(f"{_IN}.use_peft")):
        return Answer({"method": "full"})
    if not is_on(values.get("peft.q_lora")):
        return Answer({"method": "lora"})
    bits = values.get("peft.q_lora_bits", 4)
    return Answer({"method": "qlora", "quantization": f"{bits}bit"} if bits in (4, 8) else None)


def _trackers(_: Any, values: Values) -> Answer:
    on = [
        name
        for name in ("tensorboard", "wandb", "mlflow")
        if is_on(values.get(f"{_IN}.enable_{name}", name == "tensorboard"))
    ]
    return Answer({"report_to": ", ".join(on)} if on else {}, "" if on else "is off.")


def _fsdp(value: Any, values: Values) -> Answer:
    if is_off(value):
        return Answer({}, "is off.")
    unsharded = values.get("fsdp.sharding_strategy") == "NO_SHARD"
    offload = {"offload_param": "cpu"} if is_on(values.get("fsdp.cpu_offload")) and not unsharded else {}
    return Answer({"strategy": "ddp" if unsharded else "fsdp"} | offload)


def _deepspeed(value: Any, values: Values) -> Answer:
    if is_off(value):
        return Answer({}, "is off.")
    stage = str(values.get("deepspeed.zero_stage", 0)).rpartition("_")[2]
    settings: Values = {"strategy": f"zero{stage}" if stage in ("0", "1", "2", "3") else "zero0"}
    for part in ("offload_optimizer", "offload_param"):
        device = str(values.get(f"deepspeed.{part}.device", "")).lower()
        settings |= {part: device} if device in ("cpu", "nvme") else {}
    return Answer(settings)


def _length(value: Any, _: Values) -> Answer:
    return Answer({"max_length": value}) if value else Answer(None, NO_LENGTH)


def _of_trainer(value: Any, _: Values) -> Answer:
    """trainer_kwargs: arguments of trl's trainer."""
    given = value if isinstance(value, dict) else {}
    names = {"max_seq_length": "max_length", "max_length": "max_length", "beta": "beta"}
    settings = {names[name]: one for name, one in given.items() if name in names}
    settings |= {"packing": "packed"} if is_on(given.get("packing")) else {}
    others = ", ".join(sorted(map(str, given.keys() - names.keys() - {"packing"})))
    return Answer(settings or None, f"{others}: set what they say as settings." if others else "")


def _of_peft(rule: Rule) -> Rule:
    def checked(value: Any, values: Values) -> Answer:
        return rule(value, values) if is_on(values.get(f"{_IN}.use_peft")) else Answer({}, "use_peft is off.")

    return checked


def _nested(value: Any, values: Values) -> Answer:
    on = is_on(values.get("peft.q_lora"))
    return Answer({"double_quantization": is_on(value)}) if on else Answer({}, "q_lora is off.")


def defaults(values: Values) -> Values:
    """What Oumi uses if a key is missing."""
    own: Values = {
        f"{_IN}.trainer_type": "hf", f"{_IN}.use_peft": False, f"{_IN}.per_device_train_batch_size": 8,
        f"{_IN}.learning_rate": 5e-5, f"{_IN}.warmup_ratio": 0.0, f"{_IN}.logging_steps": 50, f"{_IN}.save_steps": 500,
        f"{_IN}.held_out": 0, "model.model_max_length": None,
    }  # fmt: skip
    if is_on(values.get(f"{_IN}.use_peft")):
        own |= {"peft.lora_r": 8, "peft.lora_alpha": 8, "peft.lora_dropout": 0.0, "peft.use_bnb_nested_quant": False}
    return own


_TRAINER: Table = {f"{_IN}.{name}": rule for name, rule in TRAINER.items()}
_PEFT: Table = {
    "peft.lora_r": to("lora_r"),
    "peft.lora_alpha": to("lora_alpha"),
    "peft.lora_dropout": to("lora_dropout"),
    "peft.lora_target_modules": listed("target_modules"),
    "peft.lora_modules_to_save": listed("modules_to_save"),
    "peft.lora_bias": usual("none", "Lathe trains no biases with LoRA."),
    "peft.lora_init_weights": choice("lora_init", _INITS, "default"),
    "peft.use_bnb_nested_quant": _nested,
}
_KEYS, PREFIXES = read("oumi")
TABLE: Table = {
    **_TRAINER,
    **_KEYS,
    f"{_IN}.trainer_type": _task,
    f"{_IN}.use_peft": _method,
    f"{_IN}.optimizer": TRAINER["optim"],
    f"{_IN}.enable_gradient_checkpointing": TRAINER["gradient_checkpointing"],
    f"{_IN}.mixed_precision_dtype": lambda value, _: Answer({} if is_off(value) else {"precision": str(value).lower()}),
    f"{_IN}.held_out": lambda value, _: Answer({"eval_split": value}),
    f"{_IN}.trainer_kwargs": _of_trainer,
    f"{_IN}.max_grad_norm": lambda value, _: Answer({"max_grad_norm": value or 0}),
    **{f"{_IN}.enable_{name}": _trackers for name in ("wandb", "mlflow", "tensorboard")},
    **{name: _of_peft(rule) for name, rule in _PEFT.items()},
    "model.model_max_length": _length,
    "model.torch_dtype_str": DTYPE,
    "model.attn_implementation": choice("attention", ATTENTION, "auto"),
    "model.chat_template_kwargs": template_kwargs,
    "model.enable_liger_kernel": LIGER,
    "model.trust_remote_code": TRAINER["trust_remote_code"],
    "data.train.datasets": lambda value, _: Answer({}, "is empty.") if is_off(value) else Answer(None, _DATA),
    "data.validation.datasets": lambda value, _: Answer({}, "is empty.") if is_off(value) else Answer(None, "set validation_data."),
    "data.train.mixture_strategy": choice("mix_until", {name: name for name in MixUntil}, "first_exhausted"),
    "fsdp.enable_fsdp": _fsdp,
    "deepspeed.enable_deepspeed": _deepspeed,
}  # fmt: skip


def recognizes(values: Values) -> bool:
    """True for Oumi's sections: a model, and either training data or a trainer."""
    model, data, training = (values.get(name) for name in ("model", "data", "training"))
    named = isinstance(model, dict) and "model_name" in model
    trains = (isinstance(data, dict) and "train" in data) or (isinstance(training, dict) and "trainer_type" in training)
    return (named and trains) or "model.model_name" in values
