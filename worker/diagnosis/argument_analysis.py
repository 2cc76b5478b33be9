"""Explains an argument that a library does not have: which version renamed it, and to what."""

import re

from worker.diagnosis.cause import Detail, Known
from worker.diagnosis.log_text import Log

_GIVEN = re.compile(r"(?:(?P<callee>\w+)\**\.)?\w+\(\) got an unexpected keyword argument\s*'(?P<argument>\w+)'")

_OVERRIDE = (
    "Add num_items_in_batch=None to the parameters of your own compute_loss: transformers 4.46 and later pass it."
)
_ARGUMENTS = r"\w*(?:TrainingArguments|Config)|"
_OF_SFT_CONFIG = ("dataset_text_field", "packing", "dataset_num_proc", "neftune_noise_alpha")
_OF_DPO_CONFIG = ("beta", "max_length", "max_prompt_length", "loss_type")

# (what is called, the argument): library, from which version it is gone, what to write instead
_RENAMED = {
    (r"\w*Trainer", "tokenizer"): ("transformers 5 and trl 0.16", "processing_class"),
    (_ARGUMENTS, "evaluation_strategy"): ("transformers 4.46", "eval_strategy"),
    (_ARGUMENTS, "no_cuda"): ("transformers 5", "use_cpu"),
    (_ARGUMENTS, "fp16_backend"): ("transformers 5", "nothing"),
    (_ARGUMENTS, "half_precision_backend"): ("transformers 5", "nothing"),
    (_ARGUMENTS, "overwrite_output_dir"): ("transformers 5", "nothing"),
    (_ARGUMENTS, "save_safetensors"): ("transformers 5", "nothing"),
    (_ARGUMENTS, "push_to_hub_token"): ("transformers 5", "hub_token"),
    (_ARGUMENTS, "group_by_length"): ("transformers 5", "train_sampling_strategy='group_by_length'"),
    (_ARGUMENTS, "warmup_ratio"): ("transformers 5", "warmup_steps, which takes a share below 1 too,"),
    (r"\w*", "use_auth_token"): ("transformers 5 and datasets 3", "token"),
    (r"\w*", "load_in_4bit"): ("transformers 5", "quantization_config=BitsAndBytesConfig(load_in_4bit=True)"),
    (r"\w*", "load_in_8bit"): ("transformers 5", "quantization_config=BitsAndBytesConfig(load_in_8bit=True)"),
    (r"SFTConfig", "max_seq_length"): ("trl 0.20", "max_length"),
    (r"SFTTrainer", "max_seq_length"): ("trl 0.13", "max_length in SFTConfig"),
    **{(r"SFTTrainer", name): ("trl 0.13", f"{name} in SFTConfig") for name in _OF_SFT_CONFIG},
    **{(r"(?:DPOTrainer|)", name): ("trl 0.13", f"{name} in DPOConfig") for name in _OF_DPO_CONFIG},
    (r"\w+Config", "max_prompt_length"): ("trl 0.26 to 0.29", "max_length, which limits prompt and answer together,"),
    (r"PPOTrainer", "config"): ("trl 0.12", "args"),
    (r"Accelerator", "dispatch_batches"): ("accelerate 1.0", "dataloader_config=DataLoaderConfiguration(dispatch_batches=...)"),
}  # fmt: skip


def analyze_argument(log: Log, place: int, known: Known) -> Detail:
    """Names the argument, and for a known one the version that renamed it and its new name."""
    found = _GIVEN.search(log.following(place, 3))
    if found is None:
        return Detail()
    callee, argument = found["callee"] or "", found["argument"]
    named = f"{callee or 'The function'} has no argument {argument}."
    if argument == "num_items_in_batch":
        return Detail(explanation=named, fix=(_OVERRIDE,))
    for (pattern, name), (version, instead) in _RENAMED.items():
        if name == argument and (not callee or re.fullmatch(pattern, callee)):
            fix = f"Write {instead} instead of {argument}, which is gone since {version}; or install an older version."
            return Detail(explanation=named, fix=(fix,))
    return Detail(explanation=named)
