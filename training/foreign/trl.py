"""Arguments of trl, and of scripts on transformers' Trainer: their task, LoRA and quantization, their keys and defaults."""

import re
from typing import Any

from training.config.choices import PreferenceLoss
from training.errors import UserError
from training.foreign.entries import IS_OFF, Answer, Rule, Table, Values, is_off, is_on, only_if, read
from training.foreign.launch_keys import OF_TRL
from training.foreign.tasks import named_task, refuse
from training.foreign.trainer_keys import COMMAND, FILE, SHARED, TRAINER, adapter, summed

_KEYS = read("trl", SHARED)
_ADAPTER = _KEYS.tables["adapter"]
_OWN_SCRIPT = re.compile(
    r"^trl |(^|[/.])trl[/.]|examples/(scripts|research)|with (?!Training)"
    r"|(^|/)(run_)?(sft|dpo|kto|orpo|reward|reward_modeling)\.py$"
)
LOSSES = tuple(PreferenceLoss)


def is_own(values: Values) -> bool:
    """True if trl itself reads the arguments, not another script on transformers' Trainer."""
    if COMMAND in values:
        return bool(_OWN_SCRIPT.search(str(values[COMMAND])))
    return any(values.get(key) is not None for key in _KEYS.tables["own"]["keys"])


def trains_adapter(values: Values) -> bool:
    """True if the run trains LoRA: a switch says so, or, for scripts other than trl's, there are options of LoRA."""
    if any(is_on(values.get(key)) for key in ("full_finetune", "full_finetuning")):
        return False
    if any(is_on(values.get(key)) for key in _ADAPTER["quantized"]) or values.get("peft_type") is not None:
        return True
    if values.get("full_finetune") is False:
        return True
    switches = [is_on(values[key]) for key in _ADAPTER["switches"] if values.get(key) is not None]
    if switches:
        return any(switches)
    if is_own(values):
        return False
    return any(not is_off(values.get(key)) and values[key] != 0 for key in _ADAPTER["options"] if key in values)


def quantized_bits(values: Values) -> str:
    """The bits of quantized weights: 4, 8, or empty."""
    given = (
        str(next((values[key] for key in _ADAPTER["bits"] if key in values), "")).removeprefix("nf").removeprefix("int")
    )
    by_name = "qlora" in str(values.get(COMMAND)).rpartition("/")[2]
    if (
        given == "4"
        or by_name
        or any(is_on(values.get(key)) for key in (*_ADAPTER["four_bits"], *_ADAPTER["quantized"]))
    ):
        return "4"
    return "8" if given == "8" or any(is_on(values.get(key)) for key in _ADAPTER["eight_bits"]) else ""


def task_of(values: Values) -> str:
    """The task that the command says, or keys that only one task has. Raises UserError if it is one that Lathe does not train."""
    task = named_task(str(values[COMMAND]).rsplit("/", 1)[-1]) if COMMAND in values else None
    if task in (None, "sft", "pretraining"):
        if key := next((key for key in _KEYS.tables["of_refused"] if not is_off(values.get(key))), ""):
            refuse(_KEYS.tables["of_refused"][key], key)
        loss = values.get("loss_type", values.get("dpo_loss_type"))
        refuse(str(loss), f"loss_type: {loss}")
        name = str(loss[0] if isinstance(loss, list) and loss else loss)
        own = {"kto": "kto", "apo_zero_unpaired": "kto"}.get(name, "dpo" if name in LOSSES and task is None else None)
        keyed = (
            next((of for key, of in _KEYS.tables["of_a_task"].items() if key in values), None) if task is None else None
        )
        path = str(values.get(FILE, "")) if task is None else ""
        named = _task_of_file(path, preferences=keyed == "dpo") if {keyed, own} <= {"dpo", None} else None
        task = named or own or keyed or task
    return task or "sft"


def _task_of_file(path: str, *, preferences: bool) -> str | None:
    """The task that the name of a file or of its folder says, where the keys do not decide. Raises UserError if the keys are of
    training on preferences, and the name says one that Lathe does not have."""
    for part in reversed(path.split("/")[-2:]):
        try:
            task = named_task(part.rpartition(".")[0] or part)
        except UserError:
            if preferences:
                raise
            continue  # a name decides nothing alone
        if task in ("sft", "pretraining", "dpo", "orpo", "kto", "reward"):
            return task
    return None


_HOLDS_OUT = re.compile(r"(^|/)run_(clm|fim|mlm|plm)\w*\.py\b")
"""transformers' examples that hold out rows without being asked."""
_BLOCKS = re.compile(r"(^|/)run_(clm|fim)\w*\.py\b")
"""transformers' examples that join texts and cut them into blocks."""
_HELD_OUT = ("test_split_size", "validation_file", "validation_split_percentage", "eval_dataset_size")
_SETS = "these are data sets of the hub: import them on the page Data sets, then pick them."
_NO_ADAPTER = "has no effect: without use_peft all weights are trained."
_SUM = summed(max_source_length=1024, max_target_length=128)


def _task(_: Any, values: Values) -> Answer:
    return Answer({"task": task_of(values)})


def _task_by_file(_: Any, values: Values) -> Answer:
    task = task_of(values)
    return Answer({"task": task}) if task != "sft" else Answer({}, "says no other task.")


def method(_: Any, values: Values) -> Answer:
    """The training method that the arguments say together."""
    return Answer(adapter(quantized_bits(values)) if trains_adapter(values) else {"method": "full"})


def _number_of_bits(_: Any, values: Values) -> Answer:
    bits = quantized_bits(values)
    return Answer({"quantization": f"{bits}bit"}) if bits else Answer({}, "means no quantization.")


def _lengths(value: Any, values: Values) -> Answer:
    """max_source_length and max_target_length: apart for an encoder-decoder, else their sum."""
    if task_of(values) != "seq2seq":
        return _SUM(value, values)
    source, target = values.get("max_source_length", 1024), values.get("max_target_length", 128)
    return Answer({"max_length": source, "max_target_length": target})


def _share(value: Any, _: Values) -> Answer:
    """A percentage of the rows that are held out; some scripts read a share below 1."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return Answer({"eval_split": 0}, "is off.")
    return Answer({"eval_split": value / 100 if value >= 1 else value})


def _mixture(value: Any, _: Values) -> Answer:
    """dataset_mixture: data sets of the hub, and how many of their rows are held out."""
    share = value.get("test_split_size") if isinstance(value, dict) else None
    return Answer({"eval_split": share} if share else None, _SETS)


def _loss(value: Any, values: Values) -> Answer:
    name = str(value[0] if isinstance(value, list) and len(value) == 1 else value)
    if name in ("kto", "nll", "chunked_nll", "apo_zero_unpaired"):
        return Answer({}, "belongs to the task.")
    if name not in LOSSES:
        return Answer(None, f"Lathe has {', '.join(LOSSES)}.")
    return Answer({"dpo_loss": name} if COMMAND in values else {"task": task_of(values), "dpo_loss": name})


def _of_dpo(note: str) -> Rule:
    """A key that changes nothing, but only preference tasks have."""
    return lambda _, values: Answer({} if COMMAND in values else {"task": task_of(values)}, note)


def _beta(value: Any, values: Values) -> Answer:
    if COMMAND in values:
        return Answer({"beta": value})
    note = "the file does not say which preference task; set task if it is another."
    return Answer({"beta": value, "task": task_of(values)}, note)


_ALL_TOKENS = (
    "conversations and texts carry loss on every token, rows with prompt and completion on the completion only: "
    "set train_on_prompt to false for these."
)


def _assistant_only(value: Any, values: Values) -> Answer:
    """assistant_only_loss, without which trl trains on all tokens of a conversation."""
    if is_on(value):
        return Answer({"train_on_prompt": False})
    if is_on(values.get("completion_only_loss")):
        return Answer({}, "completion_only_loss says this.")
    return Answer({"train_on_prompt": True}, _ALL_TOKENS) if task_of(values) == "sft" else IS_OFF


def _length(value: Any, values: Values) -> Answer:
    """The longest row that the model allows, beside which the trainer has its own."""
    if isinstance(values.get("max_length"), int):
        return Answer({}, "max_length says this.")
    return SHARED["max_length"](value, values)


def _padding_free(value: Any, values: Values) -> Answer:
    if not is_on(value) or is_on(values.get("packing")):
        return IS_OFF if not is_on(value) else Answer({}, "packing says this.")
    return Answer({"packing": "padding_free"})


def _text_column(value: Any, _: Values) -> Answer:
    return Answer({} if value in (None, "text") else {"columns": f"text={value}"})


def _held_out_rows(value: Any, values: Values) -> Answer:
    on = is_on(values.get("do_eval"))
    return Answer({"eval_split": value}) if on else Answer({"eval_split": 0}, "do_eval is off.")


def _peft_type(value: Any, values: Values) -> Answer:
    return method(value, values) if str(value).upper() == "LORA" else Answer({"method": str(value).lower()})


def _prefix(value: Any, _: Values) -> Answer:
    return Answer({"method": "prefix_tuning", "method_options": f"num_virtual_tokens={value}"} if value else {})


def _is_sft_trainer(values: Values) -> bool:
    """True if trl's trainer for SFT makes the labels, not a script with a trainer of its own."""
    command = str(values.get(COMMAND, ""))
    return "SFT with" in command or (" with " not in command and is_own(values))


def defaults(values: Values) -> Values:
    """What the program uses for missing keys, where Lathe's default is another."""
    task, command = task_of(values), str(values.get(COMMAND))
    own: Values = {
        "use_peft": None, "per_device_train_batch_size": 8, "warmup_ratio": 0.0, "test_split_size": 0, "save_steps": 500,
    }  # fmt: skip
    if values.get("train_file") and not values.get("validation_file") and _HOLDS_OUT.search(command):
        own["validation_split_percentage"] = 5
    if command.startswith("trl "):  # which starts accelerate
        own["num_processes"] = None
    if task == "sft" and _is_sft_trainer(values):
        own["assistant_only_loss"] = False
    if _BLOCKS.search(command):
        own["packing"] = True
    if any(values.get(key) for key in _HELD_OUT) and not values.get("evaluation_strategy"):
        own["eval_strategy"] = "no"
    generates = task in ("sft", "pretraining", "seq2seq", "classification")
    if (generates or "with Training" in command) and not is_own(values):
        own |= {} if quantized_bits(values) or "Unsloth" in command else {"bf16": False}
        return own | {"learning_rate": 5e-5, "logging_steps": 500}
    rates = {"sft": 2e-5, "reward": 1e-4}
    own |= {"learning_rate": rates.get(task, 1e-6), "logging_steps": 10, "gradient_checkpointing": True}
    own |= {"lora_dropout": 0.05} if trains_adapter(values) else {}
    return own | ({"use_bnb_nested_quant": False} if quantized_bits(values) == "4" else {})


TRL: Table = {
    **OF_TRL,
    **TRAINER,
    **_KEYS.rules,
    COMMAND: _task,
    FILE: _task_by_file,
    "dataset_text_field": _text_column,
    "assistant_only_loss": _assistant_only,
    "padding_free": _padding_free,
    "activation_offloading": lambda value, values: (
        IS_OFF
        if is_off(value)
        else Answer({"offload_activations": True})
        if values.get("gradient_checkpointing") is False
        else Answer({}, "gives gradient_checkpointing offloaded.")
    ),
    **dict.fromkeys(("max_seq_length", "model_max_length", "max_seq_len", "max_sequence_length"), _length),
    "validation_split_percentage": _share,
    "dataset_mixture": _mixture,
    **dict.fromkeys(("source_max_len", "target_max_len"), summed(source_max_len=1024, target_max_len=256)),
    "eval_dataset_size": _held_out_rows,
    "max_source_length": _lengths,
    "max_target_length": _lengths,
    "max_prompt_length": _of_dpo("max_length limits prompt and answer together."),
    "precompute_ref_log_probs": _of_dpo("Lathe computes the reference in each step."),
    "beta": _beta,
    "dpo_beta": _beta,
    "dpo_loss_type": lambda value, values: _loss({"dpo": "sigmoid"}.get(str(value), value), values),
    "loss_type": _loss,
    "f_divergence_type": lambda value, values: (
        _task(value, values) if value == "reverse_kl" else Answer(None, "Lathe has the reverse KL divergence.")
    ),
    "discopop_tau": _of_dpo("belongs to loss_type discopop."),
    "center_rewards_coefficient": lambda value, values: (
        _task(value, values) if is_off(value) else Answer(None, "Lathe does not center rewards.")
    ),
    **dict.fromkeys((*_ADAPTER["switches"], *_ADAPTER["quantized"], "full_finetune", "full_finetuning"), method),
    **{name: only_if(trains_adapter, rule, _NO_ADAPTER) for name, rule in read("trl_lora", SHARED).rules.items()},
    **dict.fromkeys(_ADAPTER["bits"], _number_of_bits),
    "peft_type": _peft_type,
    "pre_seq_len": _prefix,
    "desirable_weight": lambda value, values: Answer({"task": task_of(values), "desirable_weight": value}),
}
