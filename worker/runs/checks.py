"""What is wrong with a run before it is queued: each check is a function of a settled configuration."""

import json
import shutil
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sqlmodel import Session

from training import rules
from training.chat import template
from training.config.choices import ChunkedLoss, LoraInit, Method, Packing
from training.config.continued_adapter import differing, settings_as_fields, taken_over
from training.config.fields import ConfigError
from training.config.name_values import OptionError, as_names, missing_trackers, parse, written
from training.config.peft_methods import is_pattern
from training.config.run_config import RunConfig
from training.errors import Problem, UserError
from training.model_info.config_json import ModelError, read_config, text_config
from training.model_info.families import read_shape, why_padded
from training.model_info.folder import ModelFacts, adapter_base, describe_model, has_tokenizer, misspelled, module_names
from training.units import byte_size
from worker import disk_quota
from worker.allowed_paths import HUB_ID, no_adapter
from worker.datasets import run_data
from worker.engine_traits import ENGINES
from worker.machine import programs
from worker.machine.model_files import with_links
from worker.runs import reward_models
from worker.runs.settle import Settled, target_modules
from worker.settings import get_settings, hub_token
from worker.store import database, quotas

SPARE_BYTES = 256 * 2**20  # left free on the disk for logs, events and answers of runs
_IN_TEMPLATES = str.maketrans("", "", "\n\r\t")
_NAMED_MODULES = 12
_ADAPTER = "init_adapter"


def problems(settled: Settled) -> list[Problem]:
    """Why the run would be refused, as far as it can be said without reading large files; conflicts of settings not included."""
    if unprintable := list(_unprintable(settled.config)):
        return unprintable
    return [*_checked(settled), *run_data.problems(settled.data, settled.config)]


def before_import(settled: Settled) -> list[Problem]:
    """Why the run is refused before its data is imported: what the user may not name, or the problems of all settings but the data.

    Raises:
        ConfigError: a text cannot be printed; no data is looked for by such a name.
    """
    if unprintable := list(_unprintable(settled.config)):
        raise ConfigError(unprintable)
    return [*_checked(settled), *conflicts(settled)]


def conflicts(settled: Settled) -> list[Problem]:
    """The settings that cannot be combined; a rule may read the model's folder."""
    return [] if settled.refused else rules.problems(settled.config, settled.machine)


def _checked(settled: Settled) -> list[Problem]:
    return list(settled.refused) or [problem for check in CHECKS for problem in check(settled)]


def _unprintable(config: RunConfig) -> Iterator[Problem]:
    for field, value in config:
        text = value.translate(_IN_TEMPLATES) if field in ("chat_template", "reward_code") and value else value
        if isinstance(text, str) and not text.isprintable():
            yield Problem(field, value, "contains a non-printable character.", "Type it again.")


def quota_problems(session: Session, settled: Settled, *, more: int) -> Iterator[Problem]:
    """What the owner's quota does not allow, with `more` waiting runs."""
    config, owner = settled.config, settled.owner
    on_cpu = not ENGINES[settled.engine].has_jobs and settled.machine.kind == "cpu"
    devices = quotas.devices_problem(session=session, config=config, owner=owner, on_cpu=on_cpu)
    yield from filter(None, [devices, quotas.waiting_problem(session=session, owner=owner, more=more)])


def adapter_problems(config: RunConfig, adapter: dict[str, Any] | None) -> Iterator[Problem]:
    """Why the run cannot continue its initial adapter, whose adapter_config.json is given; each with the settings that fit it."""
    if not config.init_adapter:
        return
    if not config.method.adapts:
        fix = "Choose the method of the adapter, or leave init_adapter empty."
        message = f"needs a method with an adapter, and method is {config.method.value}."
        yield Problem(_ADAPTER, config.init_adapter, message, fix)
    elif adapter is None:
        yield no_adapter(config.init_adapter)
    else:
        yield from _adapter_differences(config, adapter)


def template_problems(settled: Settled) -> Iterator[Problem]:
    """What is wrong with the syntax of a long chat template; that of a short one is a rule."""
    text = settled.config.chat_template or ""
    if len(text) <= template.SHORT_TEXT or not template.is_source(text) or text in template.NAMED.values():
        return
    with suppress(programs.ProgramKilled):  # which says nothing about the text, and is not remembered
        if problem := _syntax_problem(text):
            changes = {"chat_template": None}
            yield Problem("chat_template", None, template.NOT_VALID.format(problem), template.FIX, changes)


@lru_cache(maxsize=64)
def _syntax_problem(text: str) -> str | None:
    """As `template.syntax_problem`, from a process with limits."""
    try:
        found: str | None = programs.run_for_json(programs.TEMPLATE_SYNTAX, [], text=text)["syntax"]
    except programs.ProgramKilled:
        raise
    except programs.ProgramError as error:
        return f"it cannot be checked: {error}."
    return found


def model_problems(settled: Settled) -> Iterator[Problem]:
    """Why a run cannot load its model."""
    if isinstance(settled.model, Problem):
        yield settled.model


def disk_needed(config: RunConfig, facts: ModelFacts) -> int:
    """Estimates the bytes that a run writes at most: checkpoints (one more than are kept, during a save) and the result.

    A trained parameter takes 16 bytes in a checkpoint (weight, fp32 copy and Adam's two moments) and at most 8 in the
    result and its download. LoRA of rank r trains about 2r/d of a model of width d; a merged adapter takes as much as the
    base model, twice with its download. Unknown sizes count as 0.
    """
    parameters = facts.parameters or 0
    lora = min(1.0, 2 * config.lora_r / facts.hidden_size) if facts.hidden_size else 0.0
    trained = parameters if config.method is Method.FULL else parameters * lora
    merged = 8 * parameters if config.merge_adapter else 0
    return merged + int(trained * (16 * (config.save_total_limit + 1) + 8))


def _quota(settled: Settled) -> list[Problem]:
    with database.read_everything() as session:
        return list(quota_problems(session, settled, more=1))


def _adapter_differences(config: RunConfig, values: dict[str, Any]) -> Iterator[Problem]:
    kind = str(values.get("peft_type") or "").lower()
    if kind != config.method.in_peft:
        message = f"is an adapter of {kind or 'an unknown method'}, and method is {config.method.value}."
        yield Problem(_ADAPTER, config.init_adapter, message, "Choose its method.")
        return
    if config.lora_init is not LoraInit.DEFAULT:
        message = f"sets the first weights of the adapter, and so does lora_init {config.lora_init.value}."
        yield Problem(_ADAPTER, config.init_adapter, message, "Set lora_init to default.", {"lora_init": "default"})
    try:
        changes = taken_over(config, differing(settings_as_fields(config), values))
    except OptionError:
        return  # which a rule refuses
    targets = target_modules(values)
    if targets and _split(targets) != _split(config.target_modules):
        changes["target_modules"] = targets
    if changes:
        differences = ", ".join(f"{name} {value}" for name, value in changes.items())
        message = f"has {differences}, and the run has other values."
        yield Problem(_ADAPTER, config.init_adapter, message, "Set these.", changes)


def _split(targets: str) -> set[str]:
    return {name.strip() for name in targets.split(",")}


def _surroundings(settled: Settled) -> Iterator[Problem]:
    """What the run would lack besides its model: what its engine needs, vLLM, a token of the hub, packages of trackers."""
    config, settings = settled.config, get_settings()
    engine = ENGINES[settled.engine]
    yield from engine.problems(settings, config)
    if settings.broker_url:
        return  # the workers are elsewhere, and each run notes what is missing there
    if config.push_to_hub and not hub_token():
        fix = "Set HF_TOKEN or LATHE_HUB_TOKEN to a token with write access and restart Lathe, or leave push_to_hub empty."
        yield Problem("push_to_hub", config.push_to_hub, "needs a hub token, and none is set.", fix)
    if config.has_vllm_beside and not engine.has_jobs and not settings.vllm_command:
        fix = "Set generation to model, or install vLLM and set LATHE_VLLM_COMMAND (docs/deploy.md)."
        yield Problem(
            "generation", config.generation.value, "needs vLLM on this machine, and LATHE_VLLM_COMMAND is not set.", fix
        )
    yield from missing_trackers(config.report_to)


def _misspelled(settled: Settled) -> Iterator[Problem]:
    """A name that is taken for a hub id, and is nearly that of a folder here which the user may name."""
    name, facts = settled.config.model, settled.facts
    is_hub_id = facts is not None and facts.path is None
    folder = misspelled(name) if is_hub_id and settled.config.revision is None else None
    if folder and settled.allowed.find_model(str(folder)):
        fix = f"Write {folder}. For the model of the hub with the name given, set revision (main)."
        message = "is no folder of this machine, and nearly the name of one."
        yield Problem("model", name, message, fix, {"model": str(folder)})


def _no_target(settled: Settled) -> Iterator[Problem]:
    """Names of target modules of which the model has none. Experts have other names in memory than in the files."""
    folder, targets = settled.folder, settled.config.target_modules
    by_name = settled.config.method.adapts and targets not in ("auto", "all-linear") and not is_pattern(targets)
    if folder is None or not by_name or any("expert" in key for key in text_config(read_config(folder))):
        return
    try:
        modules = module_names(folder)
    except (OSError, ValueError, KeyError, struct.error):
        return  # the folder's weights were refused before
    if any(module == name or module.endswith(f".{name}") for name in as_names(targets) for module in modules):
        return
    last = sorted({module.rpartition(".")[2] for module in modules if not module.rpartition(".")[2].isdigit()})
    fix = f"Choose among {', '.join(last[:_NAMED_MODULES])}, or set target_modules to auto."
    yield Problem("target_modules", targets, "match no module of the model.", fix, {"target_modules": "auto"})


def _tied_tokens(settled: Settled) -> Iterator[Problem]:
    """Trained tokens of embeddings that are tied to the head are an adapter on the head, too, which some tasks and a loss in parts
    do not see."""
    config, folder = settled.config, settled.folder
    try:
        given = parse(config.method_options)
    except OptionError:  # refused by a rule
        return
    in_options = config.method.is_lora and "trainable_token_indices" in given
    if folder is None or not (in_options or config.method is Method.TRAINABLE_TOKENS) or not _ties(folder):
        return
    trains = "trains tokens of the embeddings, which this model shares with lm_head; "
    if config.chunked_loss is ChunkedLoss.ON and config.task.traits.chunks_loss:
        reason = f"does not fit a run that {trains}a loss in parts is computed from the weight of lm_head alone."
        yield Problem("chunked_loss", "on", reason, "Set chunked_loss to auto.", {"chunked_loss": "auto"})
    if not config.task.traits.fuses_head:
        return
    task = f"task {config.task.value} computes log probabilities from the weight of lm_head, so they would not train."
    if in_options:
        rest = written({name: value for name, value in given.items() if name != "trainable_token_indices"}) or None
        fix = "Omit trainable_token_indices."
        yield Problem("method_options", config.method_options, trains + task, fix, {"method_options": rest})
    else:
        changes = {"method": Method.LORA.value, "method_options": None}
        yield Problem("method", config.method.value, trains + task, "Set method to lora.", changes)


def _ties(folder: Path) -> bool:
    """True if a model's embeddings and head share their weight, as far as its config.json says."""
    try:
        return not read_shape(folder).head
    except ModelError:  # no formula knows its layers
        return bool(text_config(read_config(folder)).get("tie_word_embeddings"))


def _model_kind(settled: Settled) -> Iterator[Problem]:
    """Encoder-decoders need the task seq2seq, and other models must not have it; any model can classify."""
    task, facts = settled.config.task, settled.facts
    if facts is None or facts.is_encoder_decoder is None or not task.traits.generates:
        return
    if task.traits.has_encoder and not facts.is_encoder_decoder:
        message = f"needs an encoder-decoder model; {facts.architecture} is decoder-only."
        yield Problem("task", task.value, message, "Choose a model such as T5 or BART, or the task sft.")
    elif not task.traits.has_encoder and facts.is_encoder_decoder:
        message = f"needs a decoder-only model; {facts.architecture} is an encoder-decoder."
        yield Problem("task", task.value, message, "Set task to seq2seq, or choose another model.")


def _packing(settled: Settled) -> Iterator[Problem]:
    """Rows must not be concatenated for a family that is known to mix them."""
    config, folder = settled.config, settled.folder
    if (
        config.packing not in (Packing.PADDING_FREE, Packing.PACKED)
        or folder is None
        or not config.task.traits.generates
    ):
        return
    model_type = str(read_config(folder).get("model_type") or "")
    if reason := why_padded(model_type):
        message = f"does not fit {model_type}: {reason}, so rows would influence each other."
        yield Problem("packing", config.packing.value, message, "Set packing to auto or none.")


def _tokenizer(settled: Settled) -> Iterator[Problem]:
    if settled.folder and not has_tokenizer(settled.folder):
        fix = "Copy tokenizer.json and tokenizer_config.json from the original model into the folder."
        yield Problem("model", settled.typed.model, "the folder has no tokenizer.", fix)


def _disk(settled: Settled) -> Iterator[Problem]:
    config, facts, data_dir = settled.config, settled.facts, get_settings().data_dir
    if facts is None:
        return
    folder: Path = next(path for path in (data_dir, *data_dir.parents) if path.exists())
    needs, free = disk_needed(config, facts), shutil.disk_usage(folder).free
    needed = needs + SPARE_BYTES
    if needed > free:
        message = (
            f"Checkpoints and result need about {byte_size(needed)}; the disk of {folder} has {byte_size(free)} free."
        )
        fix = "Free disk space, keep fewer checkpoints, or set LATHE_DATA_DIR to a larger disk."
        yield Problem("save_total_limit", config.save_total_limit, message, fix)
    if over := settled.quota.refusal(needs):
        yield Problem("save_total_limit", config.save_total_limit, over, f"Keep fewer checkpoints. {disk_quota.FIX}")


_TEACHER_FIX = "Choose a decoder-only model as the teacher."


def teacher_problems(settled: Settled) -> Iterator[Problem]:
    """The problems of the setting `teacher`: the files of a model on the hub are not there yet."""
    name = settled.typed.teacher
    if not settled.config.task.traits.has_teacher or not name:
        return
    if settled.teacher is None:
        if not HUB_ID.fullmatch(name):
            fix = "Give a folder on this machine, the id of a run, or a hub id."
            yield Problem("teacher", name, "is no folder on this machine.", fix)
        return
    if isinstance(settled.teacher, Problem):
        yield settled.teacher
        return
    try:
        _check_teacher(settled, settled.teacher)
    except UserError as error:
        yield Problem("teacher", name, error.message, error.fix)


def _check_teacher(settled: Settled, folder: Path) -> None:
    """Checks the teacher in a folder, which for an adapter is its base model with the adapter.

    Raises:
        UserError: it is no model that generates text, or has another tokenizer.
    """
    base = adapter_base(folder)
    name = str(folder) if base is None else base or settled.config.model
    if base and (problem := settled.allowed.model(base, "teacher")):
        raise UserError("teacher", base, f"is an adapter on {base}, which {problem.message}", problem.fix)
    path = describe_model(name).path
    if path and read_config(str(path)).get("is_encoder_decoder"):
        raise UserError("teacher", name, "is an encoder-decoder.", _TEACHER_FIX)
    if settled.folder:
        _compare_tokens(settled.typed.teacher, settled.folder, [folder, *([path] if path else [])])


def _compare_tokens(teacher: str | None, model: Path, folders: Sequence[Path]) -> None:
    asked = json.dumps([teacher, str(model), [str(folder) for folder in folders]])
    try:
        limits = programs.VOCABULARIES.limits(*(path for folder in (model, *folders) for path in with_links(folder)))
        answer = programs.run_for_json(programs.VOCABULARIES, [], limits, text=asked)
    except programs.ProgramError as error:
        raise UserError(
            "teacher", teacher, f"has a tokenizer.json that cannot be read: {error}.", _TEACHER_FIX
        ) from None
    if problem := answer.get("problem"):
        raise UserError(problem["field"], problem["value"], problem["message"], problem["fix"])


CHECKS: Final[tuple[Callable[[Settled], Iterable[Problem]], ...]] = (
    _quota,
    lambda settled: adapter_problems(settled.config, settled.adapter),
    model_problems,
    template_problems,
    _surroundings,
    _misspelled,
    _no_target,
    _tied_tokens,
    _model_kind,
    teacher_problems,
    reward_models.problems_of_run,
    _packing,
    _tokenizer,
    _disk,
)
"""In the order in which their problems are told."""
