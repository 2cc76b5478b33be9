"""What arguments of trl, and of scripts on transformers' Trainer, say about LoRA and quantization, and whose they are."""

import re

from training.foreign.entries import Values, is_off, is_on
from training.foreign.trainer_keys import COMMAND

ADAPTER_SWITCHES = ("use_peft", "use_lora", "use_peft_lora", "lora_enable", "enable_lora", "lora", "peft")
QUANTIZED_ADAPTERS = ("use_qlora", "qlora", "q_lora")
"""Of these, false says nothing about LoRA itself."""
_ADAPTER_VALUES = (
    "lora_r", "lora_rank", "lora_alpha", "lora_dropout", "lora_target_modules", "lora_target", "lora_modules", "lora_dim",
    "adapter_name_or_path", "peft_path",
)  # fmt: skip
FOUR_BITS = ("load_in_4bit", "use_4bit", "use_4bit_quantization")
BITS = ("bits", "load_in_kbits", "load_in_bits", "quantization_bit")
EIGHT_BITS = ("load_in_8bit", "use_8bit", "use_8bit_quantization", "use_int8_training")
_OF_TRL = frozenset({
    "use_peft", "dataset_name", "max_length", "dataset_text_field", "packing", "dataset_train_split", "dataset_test_split",
    "assistant_only_loss", "completion_only_loss", "use_bnb_nested_quant", "packing_strategy", "eval_packing", "chat_template",
    "dataset_num_proc", "lora_target_modules", "chat_template_path", "loss_type", "beta", "max_prompt_length",
    "attn_implementation", "lora_r", "dataset_mixer",
})  # fmt: skip
"""Keys of trl's own arguments, and of none of transformers'."""
_OWN_SCRIPT = re.compile(
    r"^trl |(^|[/.])trl[/.]|examples/(scripts|research)|with (?!Training)"
    r"|(^|/)(run_)?(sft|dpo|kto|orpo|reward|reward_modeling)\.py$"
)


def is_own(values: Values) -> bool:
    """True if trl itself reads the arguments, not another script on transformers' Trainer."""
    if COMMAND in values:
        return bool(_OWN_SCRIPT.search(str(values[COMMAND])))
    return any(values.get(key) is not None for key in _OF_TRL)


def trains_adapter(values: Values) -> bool:
    """True if the run trains LoRA: a switch says so, or, for scripts other than trl's, there are options of LoRA."""
    if any(is_on(values.get(key)) for key in ("full_finetune", "full_finetuning")):
        return False
    if any(is_on(values.get(key)) for key in QUANTIZED_ADAPTERS) or values.get("peft_type") is not None:
        return True
    if values.get("full_finetune") is False:
        return True
    switches = [is_on(values[key]) for key in ADAPTER_SWITCHES if values.get(key) is not None]
    if switches:
        return any(switches)
    if is_own(values):
        return False
    return any(not is_off(values.get(key)) and values[key] != 0 for key in _ADAPTER_VALUES if key in values)


def quantized_bits(values: Values) -> str:
    """The bits of quantized weights: 4, 8, or empty."""
    given = str(next((values[key] for key in BITS if key in values), "")).removeprefix("nf").removeprefix("int")
    by_name = "qlora" in str(values.get(COMMAND)).rpartition("/")[2]
    if given == "4" or by_name or any(is_on(values.get(key)) for key in (*FOUR_BITS, *QUANTIZED_ADAPTERS)):
        return "4"
    return "8" if given == "8" or any(is_on(values.get(key)) for key in EIGHT_BITS) else ""
