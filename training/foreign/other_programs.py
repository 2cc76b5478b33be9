"""Keys of PEFT's adapter_config.json and of an FSDP section in a file of its own."""

from training.foreign.entries import Answer, Table, choice
from training.foreign.key_files import read
from training.foreign.sharding_files import FSDP_KEYS, from_fsdp

FSDP: Table = dict.fromkeys(
    (f"{start}{name}" for start in ("", "fsdp_") for name in FSDP_KEYS), lambda _, values: Answer(from_fsdp(values))
)
ADAPTER: Table = {
    **read("adapter")[0],
    "peft_type": lambda value, _: Answer({"method": str(value).lower()}),
    "task_type": choice("task", {"CAUSAL_LM": "sft", "SEQ_2_SEQ_LM": "seq2seq", "SEQ_CLS": "classification"}, "sft"),
    "init_lora_weights": lambda value, _: Answer({} if value in (None, True, "true") else {"lora_init": value}),
}
