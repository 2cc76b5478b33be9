"""Keys of LLaMA-Factory's YAML (v0.9)."""

from typing import Any

from training.config.choices import Method
from training.foreign.chat_keys import enable_thinking, template_name
from training.foreign.entries import Answer, Table, Values, choice, is_off, is_on, names
from training.foreign.key_files import read
from training.foreign.launch_keys import SHARED
from training.foreign.tasks import known_task, refuse
from training.foreign.trainer_keys import ATTENTION, COMMAND, LIGER, TRAINER, lengths

_STAGES = {"sft": "sft", "pt": "pretraining", "dpo": "dpo", "kto": "kto", "rm": "reward"}
_LOSSES = {"sigmoid": "sigmoid", "hinge": "hinge", "ipo": "ipo"}
DEFAULTS: Values = {
    "lora_target": "all", "lora_alpha": None, "disable_gradient_checkpointing": False,
    "cutoff_len": 2048, "lora_rank": 8, "per_device_train_batch_size": 8, "learning_rate": 5e-5, "num_train_epochs": 3.0,
    "lr_scheduler_type": "linear", "warmup_ratio": 0.0, "val_size": 0.0, "logging_steps": 500, "save_steps": 500,
}  # fmt: skip


def defaults(values: Values) -> Values:
    """What LLaMA-Factory uses if a key is missing, where Lathe's default is another; its script before 0.7 has other lengths."""
    command = str(values.get(COMMAND, ""))
    own = DEFAULTS | ({"cutoff_len": 1024} if "train_bash" in command else {})
    starts = command.startswith(("llamafactory-cli", "lmf"))  # which start a process on each device
    return own | ({"num_processes": None} if starts and "num_processes" not in values else {})


def _stage(value: Any, values: Values) -> Answer:
    task = known_task(value, _STAGES, "stage")
    if task == "dpo":
        refuse(str(values.get("pref_loss")), f"pref_loss: {values.get('pref_loss')}")
        task = "orpo" if str(values.get("pref_loss")) == "orpo" else task
    return Answer({"task": task})


def _method(value: Any, values: Values) -> Answer:
    """finetuning_type, with quantization_bit."""
    bits = values.get("quantization_bit")
    if value == "lora":
        return Answer({"method": "qlora", "quantization": f"{bits}bit"} if bits in (4, 8) else {"method": "lora"})
    if value == "full":
        return Answer({"method": "full"})
    if value == "freeze":
        layers = values.get("freeze_trainable_layers", 2)
        if isinstance(layers, int) and layers > 0:
            return Answer({"method": "full", "trainable_layers": layers})
    if value in list(Method):
        return Answer({"method": value, "quantization": f"{bits}bit"} if bits in (4, 8) else {"method": value})
    return Answer(None, "Lathe has full, lora, qlora and PEFT's methods; method stays lora.")


def _bits(value: Any, _: Values) -> Answer:
    if value in (4, 8):
        return Answer({"quantization": f"{value}bit"})
    return Answer(None, "bitsandbytes has 4 and 8 bits; 4bit is the nearest.")


def _targets(value: Any, _: Values) -> Answer:
    return Answer({"target_modules": "all-linear" if value == "all" else names(value)})


def _alpha(value: Any, values: Values) -> Answer:
    rank = values.get("lora_rank")
    return Answer({"lora_alpha": value if value is not None else 2 * (rank if isinstance(rank, int) else 8)})


def _packing(value: Any, values: Values) -> Answer:
    flat = is_on(value) and is_on(values.get("neat_packing"))
    return Answer({"packing": ("padding_free" if flat else "packed") if is_on(value) else "none"})


def _pissa(value: Any, values: Values) -> Answer:
    rounds = values.get("pissa_iter", 16)
    kind = "pissa" if rounds == -1 else "pissa_niter_4" if rounds == 4 else "pissa_niter_16"
    return Answer({"lora_init": kind}) if is_on(value) else Answer({}, "is off.")


def _loss(value: Any, values: Values) -> Answer:
    if value == "orpo":
        return Answer({}, "gives the task orpo.")
    return choice("dpo_loss", _LOSSES, "sigmoid")(value, values)


def _no_checkpointing(value: Any, _: Values) -> Answer:
    return Answer({"gradient_checkpointing": "none" if is_on(value) else "full"})


def _predict(value: Any, _: Values) -> Answer:
    return (
        Answer({}, "is off.")
        if is_off(value)
        else Answer({"answer_rows": 100}, "Lathe answers held-out rows after training.")
    )


def _peft(value: Any, _: Values) -> Answer:
    """peft_config of LLaMA-Factory 1."""
    if not isinstance(value, dict):
        return Answer({"method": "full"})
    if value.get("name") == "freeze":
        return Answer({"method": "full", "trainable_layers": value.get("freeze_trainable_layers") or 2})
    given = {
        "lora_r": value.get("r"),
        "lora_alpha": value.get("lora_alpha"),
        "lora_dropout": value.get("lora_dropout"),
        "target_modules": None
        if is_off(value.get("target_modules"))
        else names(value["target_modules"]).replace("all", "all-linear"),
    }
    return Answer({"method": "lora"} | {name: one for name, one in given.items() if one is not None})


def _distributed(value: Any, _: Values) -> Answer:
    """dist_config of LLaMA-Factory 1."""
    name = str(value.get("name", "")) if isinstance(value, dict) else ""
    if name.startswith("fsdp"):
        return Answer({"strategy": "fsdp"})
    if name == "deepspeed":
        return Answer({"strategy": "zero3" if "3" in str(value.get("config_file", "")) else "zero2"})
    return Answer(None, "Lathe has ddp, ZeRO and FSDP.")


def _mix(value: Any, _: Values) -> Answer:
    """mix_strategy: the weights come with dataset."""
    until = {"interleave_under": "first_exhausted", "interleave_over": "all_exhausted"}.get(str(value))
    if until:
        return Answer({"mix_until": until})
    if value in ("concat", None):
        return Answer({}, "is how Lathe joins data sets without weights.")
    return Answer(None, "Lathe has concat, interleave_under and interleave_over.")


def _quantized(value: Any, _: Values) -> Answer:
    """quant_config of LLaMA-Factory 1."""
    bits = value.get("quantization_bit") if isinstance(value, dict) else None
    return Answer({"method": "qlora", "quantization": f"{bits or 4}bit"})


_KEYS, PREFIXES = read("llamafactory")
TABLE: Table = {
    **TRAINER,
    **_KEYS,
    "num_processes": SHARED["num_processes"],
    "ray_num_workers": lambda value, _: Answer({"num_processes": value} if isinstance(value, int) else {}),
    "peft_config": _peft,
    "dist_config": _distributed,
    "quant_config": _quantized,
    "stage": _stage,
    "finetuning_type": _method,
    "quantization_bit": _bits,
    "quantization_method": choice("quantization", {"bitsandbytes": "4bit", "bnb": "4bit"}, "4bit by bitsandbytes"),
    "lora_alpha": _alpha,
    "lora_target": _targets,
    "pissa_init": _pissa,
    "mix_strategy": _mix,
    "max_source_length": lengths,
    "max_target_length": lengths,
    "packing": _packing,
    "template": template_name,
    "enable_thinking": enable_thinking,
    "flash_attn": choice("attention", ATTENTION, "auto"),
    "enable_liger_kernel": LIGER,
    "disable_gradient_checkpointing": _no_checkpointing,
    "pref_loss": _loss,
    "predict_with_generate": _predict,
}
