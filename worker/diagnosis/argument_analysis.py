"""Explains an argument that a library does not have: which version renamed it, and to what."""

import re
import tomllib
from pathlib import Path

from worker.diagnosis.cause import Detail, Known
from worker.diagnosis.parsing.tracebacks import raised_by_package
from worker.diagnosis.timeline import Log

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
_CALLBACK = re.compile(
    r"\b((?:\w+_)?(?:func|fn|function)|compute_metrics|preprocess_logits_for_metrics|data_collator|model_init|optimizer_cls)\("
)
"""A call of a function that the user gave."""
_SUBCLASS = re.compile(r"\w+(?:Trainer|Callback|Collator)")
_OF_ADAPTER_FILE = re.compile(r"peft/(?:config|peft_model|mapping\w*)\.py|integrations/peft\.py|from_peft_type")
_BY_NEWER_PEFT = "adapter_config.json was written by a newer PEFT than is installed."
_TO_OWN = "A library calls a function of your own with an argument that it does not have."
_LAYERS = re.compile(
    r"Linear|Embedding|LayerNorm|Conv\dd|\w+(?:Attention\w*|MLP|DecoderLayer|RotaryEmbedding|RMSNorm)"
)  # called by a model, not by users
_OF_TRAINING = re.compile(r"(?:Lora|\w+Peft|BitsAndBytes|Model)Config|Accelerator|DataCollator\w+|\w+LanguageModeling")

_OVERRIDE = (
    "Add num_items_in_batch=None to the parameters of your own compute_loss: transformers 4.46 and later pass it."
)


def _given(log: Log, index: int) -> tuple[str, str, str] | None:
    """The class or object that is called, its function, and the argument that it does not have."""
    match = _GIVEN.search(log.following(index, 3))
    if match is None:
        return None
    trace = log.traceback_at(index)
    code = trace.frames[-1].code if trace and trace.frames else ""
    called = _CALLED.search(code) if match["function"] == "__init__" else None
    return match["callee"] or (called["callee"] if called else ""), match["function"], match["argument"]


def _renamed(callee: str, argument: str) -> tuple[str, str] | None:
    """The library's version that renamed the argument, and what to write instead."""
    for pattern, name, version, instead in _NAMES["renamed"]:
        if name == argument and (not callee or re.fullmatch(pattern, callee)):
            return version, instead
    return None


def _own_function(log: Log, index: int, callee: str, function: str) -> str:
    """The user's own function or method that a package called with the argument; empty if it is not one."""
    trace = log.traceback_at(index)
    if trace is None or not raised_by_package(trace.frames) or function in ("__init__", "forward", "compute_loss"):
        return ""
    if callee:
        return f"{callee}.{function}" if _SUBCLASS.fullmatch(callee) and not _TRAINERS.fullmatch(callee) else ""
    called = _CALLBACK.search(trace.frames[-1].code)
    return f"your function {function}" if called and called[1] != function else ""


def _of_newer_peft(log: Log, index: int, callee: str) -> bool:
    """True if PEFT builds the configuration of a saved adapter, or if the log does not show who gives it."""
    trace = log.traceback_at(index)
    if trace is None or not trace.frames:
        return callee == "LoraConfig"
    return any(_OF_ADAPTER_FILE.search(f"{frame.file} {frame.function}") for frame in trace.frames)


def is_renamed(log: Log, index: int) -> bool:
    """True for an argument that is known to differ between versions."""
    given = _given(log, index)
    if given is None:
        return False
    callee, _, argument = given
    return argument == "num_items_in_batch" or argument in _NAMES["newer"] or _renamed(callee, argument) is not None


def is_unknown_setting(log: Log, index: int) -> bool:
    """True for an argument that no version of TrainingArguments, a trainer, its configuration or LoraConfig has."""
    given, trace = _given(log, index), log.traceback_at(index)
    if given is None or (trace and raised_by_package(trace.frames)) or _of_newer_peft(log, index, given[0]):
        return False
    return given[1] == "__init__" and _is_of_settings(given[0]) and not _existed(given[0], given[2])


def _is_of_settings(callee: str) -> bool:
    return callee == "LoraConfig" or bool(_ARGUMENT_CLASSES.fullmatch(callee) or _TRAINERS.fullmatch(callee))


def _existed(callee: str, argument: str) -> bool:
    """True if a version of the class had, or has, the argument."""
    if callee == "LoraConfig":
        return argument in _OF_LORA
    if argument in _OF_TRAINING_ARGUMENTS:
        return not callee.endswith("Trainer")
    return argument in _OF_TRAINERS and not _ARGUMENT_CLASSES.fullmatch(callee)


def is_between_packages(log: Log, index: int) -> bool:
    """True if a package's code gives the argument, or if a class of the training libraries has it in another version."""
    given, trace = _given(log, index), log.traceback_at(index)
    callee, function, argument = given or ("", "", "")
    by_library = trace is not None and raised_by_package(trace.frames)
    if _of_newer_peft(log, index, callee):
        return True
    if _is_of_settings(callee) and not by_library:
        return function != "__init__" or _existed(callee, argument)
    unplaced = trace is None or not trace.frames
    if function == "forward" and unplaced and _LAYERS.fullmatch(callee):
        return True
    return function != "forward" and (by_library or unplaced or bool(_OF_TRAINING.fullmatch(callee)))


def analyze_argument(log: Log, index: int, known: Known) -> Detail:
    """Names the argument, and for a known one the version that renamed it and its new name."""
    given = _given(log, index)
    if given is None:
        return Detail()
    callee, _, argument = given
    named = f"{callee or 'The function'} has no argument {argument}."
    if own := _own_function(log, index, callee, given[1]):
        return Detail(
            explanation=f"{own[0].upper()}{own[1:]} has no argument {argument}.",
            fix=(
                f"Add **kwargs to the parameters of {own} (or {argument}=None, to use it): the library passes more arguments than "
                "it takes, and newer versions pass more than older ones.",
            ),
            title=_TO_OWN,
            alone=True,
        )
    if _of_newer_peft(log, index, callee):
        return _advice_for_adapter(named, argument)
    return _advice_by_name(named, callee, argument)


def _advice_by_name(named: str, callee: str, argument: str) -> Detail:
    """What is known of the argument's name: which version has it, or which one renamed it."""
    if argument == "num_items_in_batch":
        return Detail(explanation=named, fix=(_OVERRIDE,))
    if renamed := _renamed(callee, argument):
        version, instead = renamed
        fix = f"Write {instead} instead of {argument}, which is gone since {version}; or install an older version."
        return Detail(explanation=named, fix=(fix,))
    if argument in _NAMES["newer"]:
        return Detail(explanation=named, fix=(f"{argument} needs {_NAMES['newer'][argument]}.",))
    return Detail(explanation=named)


def _advice_for_adapter(named: str, argument: str) -> Detail:
    return Detail(
        explanation=named,
        fix=(
            "Install the version of PEFT that saved the adapter, or a newer one (pip install -U peft; adapter_config.json may name "
            "it as peft_version).",
            f"If PEFT must stay old, remove {argument} from adapter_config.json, if its value there is null, false or empty: the "
            "adapter then does not use it. If the argument is one of your own code, correct or remove it there.",
        ),
        title=_BY_NEWER_PEFT,
        alone=True,
    )
