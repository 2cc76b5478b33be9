"""Explains an argument that a library does not have: which version renamed it, and to what."""

import re
import tomllib
from pathlib import Path

from worker.diagnosis.cause import Detail, Known
from worker.diagnosis.log import Log
from worker.diagnosis.parsing.frames import raised_by_package

_NAMES = tomllib.loads(Path(__file__).with_name("argument_names.toml").read_text(encoding="utf-8"))
_OF_TRAINING_ARGUMENTS, _OF_TRAINERS, _OF_LORA = (
    frozenset(_NAMES[kind].split()) for kind in ("training_arguments", "trainers", "lora")
)
_GIVEN = re.compile(
    r"(?:(?P<callee>\w+)\**\.)?(?P<function>\w+)\(\) got an unexpected keyword argument\s*'(?P<argument>\w+)'"
)
_CALLED = re.compile(r"(?:^|= *|\.|return |\()(?P<callee>[A-Z]\w+)\(")
_ARGUMENT_CLASSES = re.compile(r"(?:Seq2Seq|)TrainingArguments")
_TRAINERS = re.compile(
    r"(?:Seq2Seq|)Trainer|(?:SFT|DPO|KTO|ORPO|CPO|GRPO|PPO|PPOv2|RLOO|Reward|Online\w+)(?:Trainer|Config)"
)
_LAYERS = re.compile(r"\w+(?:Attention\w*|MLP|DecoderLayer|RotaryEmbedding|RMSNorm)")  # called by a model, not by users
_OF_TRAINING = re.compile(r"(?:Lora|\w+Peft|BitsAndBytes|Model)Config|Accelerator|DataCollator\w+|\w+LanguageModeling")

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


# arguments that older versions do not have: the version that has them
_NEWER = {
    "eval_strategy": "transformers 4.41",
    "processing_class": "transformers 4.46 and trl 0.12",
    "attn_implementation": "transformers 4.36",
    "use_flash_attention_2": "transformers 4.34, and in 5 attn_implementation replaces it",
    "num_logits_to_keep": "a newer transformers",
    "logits_to_keep": "a newer transformers",
    "cache_position": "a newer transformers",
    "position_embeddings": "a newer transformers",
    "gradient_checkpointing_kwargs": "transformers 4.35",
    "torch_dtype": "a newer transformers",
    "dtype": "transformers 4.56",
    "proxies": "an openai that knows the installed httpx",
    "line_terminator": "pandas before 2, which calls it lineterminator",
}  # fmt: skip


def _given(log: Log, place: int) -> tuple[str, str, str] | None:
    """The class or object that is called, its function, and the argument that it does not have."""
    found = _GIVEN.search(log.following(place, 3))
    if found is None:
        return None
    trace = log.traceback_at(place)
    code = trace.frames[-1].code if trace and trace.frames else ""
    called = _CALLED.search(code) if found["function"] == "__init__" else None
    return found["callee"] or (called["callee"] if called else ""), found["function"], found["argument"]


def _renamed(callee: str, argument: str) -> tuple[str, str] | None:
    """The library's version that renamed the argument, and what to write instead."""
    for (pattern, name), renamed in _RENAMED.items():
        if name == argument and (not callee or re.fullmatch(pattern, callee)):
            return renamed
    return None


def is_renamed(log: Log, place: int) -> bool:
    """True for an argument that is known to differ between versions."""
    given = _given(log, place)
    if given is None:
        return False
    callee, _, argument = given
    return argument == "num_items_in_batch" or argument in _NEWER or _renamed(callee, argument) is not None


def is_unknown_setting(log: Log, place: int) -> bool:
    """True for an argument that no version of TrainingArguments, a trainer, its configuration or LoraConfig has."""
    given, trace = _given(log, place), log.traceback_at(place)
    if given is None or (trace and raised_by_package(trace.frames)):
        return False
    return _is_of_settings(given[0]) and not _existed(given[0], given[2])


def _is_of_settings(callee: str) -> bool:
    return callee == "LoraConfig" or bool(_ARGUMENT_CLASSES.fullmatch(callee) or _TRAINERS.fullmatch(callee))


def _existed(callee: str, argument: str) -> bool:
    """True if a version of the class had, or has, the argument."""
    if callee == "LoraConfig":
        return argument in _OF_LORA
    if argument in _OF_TRAINING_ARGUMENTS:
        return not callee.endswith("Trainer")
    return argument in _OF_TRAINERS and not _ARGUMENT_CLASSES.fullmatch(callee)


def is_between_packages(log: Log, place: int) -> bool:
    """True if a package's code gives the argument, or if a class of the training libraries has it in another version."""
    given, trace = _given(log, place), log.traceback_at(place)
    callee, function, argument = given or ("", "", "")
    by_library = trace is not None and raised_by_package(trace.frames)
    if _is_of_settings(callee) and not by_library:
        return _existed(callee, argument)
    unplaced = trace is None or not trace.frames
    if function == "forward" and unplaced and _LAYERS.fullmatch(callee):
        return True
    return function != "forward" and (by_library or unplaced or bool(_OF_TRAINING.fullmatch(callee)))


def analyze_argument(log: Log, place: int, known: Known) -> Detail:
    """Names the argument, and for a known one the version that renamed it and its new name."""
    given = _given(log, place)
    if given is None:
        return Detail()
    callee, _, argument = given
    named = f"{callee or 'The function'} has no argument {argument}."
    if argument == "num_items_in_batch":
        return Detail(explanation=named, fix=(_OVERRIDE,))
    if renamed := _renamed(callee, argument):
        version, instead = renamed
        fix = f"Write {instead} instead of {argument}, which is gone since {version}; or install an older version."
        return Detail(explanation=named, fix=(fix,))
    if argument in _NEWER:
        return Detail(explanation=named, fix=(f"{argument} needs {_NEWER[argument]}.",))
    return Detail(explanation=named)
