"""What the names in a configuration stand for on this machine, each found once: files, model, adapter, data and machine.

Only this module looks up paths that a configuration names, as far as its user may name them (worker/allowed_paths.py). Submitting,
checking, forecasting and resuming a run begin with the `Settled` that only `settle` makes.
"""

import json
import re
from collections.abc import Callable, Collection
from dataclasses import InitVar, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from training.chat import template
from training.chat.template import NAMED
from training.config import data_sets, sharding
from training.config.choices import EngineName
from training.config.fields import ConfigError
from training.config.machine import A_CLUSTER, Machine
from training.config.run_config import RunConfig
from training.errors import Problem
from training.files import read_regular
from training.model_info.config_json import ModelError, local_path
from training.model_info.folder import ADAPTER_CONFIG, ModelFacts, describe_model
from training.rewards.rewards import reward_models, with_reward_models
from training.run_folder.paths import result_dir, saved_result
from worker import disk_quota
from worker.allowed_paths import CODE_SETTING, EVERYTHING, RUN_ID, AllowedPaths
from worker.allowed_rewards import judges_of_run, sampler_of_run
from worker.datasets import datasets
from worker.datasets.datasets import DatasetNotFound
from worker.datasets.run_data import DATASET_ID, NamedData, sources_of
from worker.disk_quota import DiskQuota
from worker.engine_traits import ENGINES
from worker.file_store import dataset_files
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import LOCAL, Dataset, Run

FILES = ("deepspeed_config", "chat_template", "reward_code")
"""Settings that name a file, whose text takes the place of the path: a run depends on no file of a user."""

_NAMES = ", ".join(NAMED)
_READERS: dict[str, Callable[[Path], str]] = {
    "deepspeed_config": sharding.deepspeed_from_file,
    "chat_template": template.from_file,
    "reward_code": template.text_in,
}
_MISSING = {
    "deepspeed_config": "is neither JSON nor an existing file.",
    "chat_template": f"is neither a Jinja template nor an existing file nor one of the names {_NAMES}.",
    "reward_code": "is neither Python of several lines nor an existing file.",
}
_FIXES = {
    "deepspeed_config": "Give the path of a DeepSpeed JSON file, or its text.",
    "chat_template": f"Give a name ({_NAMES}), the path of a .jinja file, or the text of a template.",
    "reward_code": "Give the path of a Python file on this machine, or its text.",
}
_WHOLE_RUN_ID = re.compile(f"[{runs.ID_LETTERS}]{{12}}")
_RESULT_FIX = "Give a model folder, a hub id (owner/name), the folder of an adapter, or the id of a run."
_MOST_ADAPTER_BYTES = 2**20
_DATA_FIX = "Give a JSON, JSONL, CSV, TSV, text or Parquet file, or pick an uploaded data set."
_UPLOAD_FIX = "Upload the file first, then pick it. Only files in the folders of LATHE_DATA_FOLDERS can be named."
_GATE: Final = object()


@dataclass(frozen=True)
class Settled:
    """A configuration and what its names stand for, found when it is first asked for. Only `settle` makes one.

    `config` has the model's absolute path, the content of files, and the target modules of the initial adapter in the place of
    their names; `typed` is as it was given. `adapter` is that adapter's adapter_config.json: empty if it cannot be read, None
    without an adapter that the user sees. `refused` is what the user may not name: then no model or adapter is looked up.
    """

    typed: RunConfig
    config: RunConfig
    allowed: AllowedPaths
    owner: str
    refused: tuple[Problem, ...]
    adapter: dict[str, Any] | None
    gate: InitVar[object]

    def __post_init__(self, gate: object) -> None:
        if gate is not _GATE:
            raise TypeError("Only settle() makes a settled configuration: it checks what the user may name.")

    @property
    def readable(self) -> RunConfig:
        """`config`, if the user may name all that it names. Raises ConfigError if something is refused."""
        if self.refused:
            raise ConfigError(list(self.refused))
        return self.config

    @cached_property
    def model(self) -> ModelFacts | Problem:
        """The facts of the model, or why a run cannot load it."""
        name = self.readable.model
        try:
            return describe_model(name)
        except ModelError as error:
            return error.problem
        except (OSError, RuntimeError):
            fix = "Give a folder with config.json, or a hub id."
            return Problem("model", name, "cannot be searched for.", fix)

    @property
    def facts(self) -> ModelFacts | None:
        """The facts of the model; None if a run cannot load it."""
        return None if isinstance(self.model, Problem) else self.model

    @property
    def folder(self) -> Path | None:
        """The model's folder, with links resolved; None without a usable model on this machine."""
        return self.facts.path if self.facts else None

    @cached_property
    def data(self) -> tuple[NamedData, ...]:
        """The data sets and files that the configuration names."""
        named = sources_of(self.config)
        return tuple(NamedData(field, source, find_data(field, source.path, self.allowed)) for field, source in named)

    @cached_property
    def teacher(self) -> Path | Problem | None:
        """The folder of the teacher, a model or an adapter; None without one, and for a hub id."""
        name = self.readable.teacher
        return find_result("teacher", name) if name else None

    @property
    def engine(self) -> EngineName:
        """The engine that places the run."""
        return get_settings().chosen_engine(self.config.engine)

    @cached_property
    def quota(self) -> DiskQuota:
        """What the owner may use of the disk, and uses."""
        return disk_quota.measured(self.owner)

    @cached_property
    def machine(self) -> Machine:
        """The machine that the run is checked against."""
        return machine_of(self.config.engine)


def settle(
    config: RunConfig, allowed: AllowedPaths = EVERYTHING, owner: str = LOCAL, *, files: Collection[str] = ()
) -> Settled:
    """Finds what the names in a configuration stand for, as far as `allowed` lets its user name them; the run is `owner`'s.

    `files` are the settings whose files are read now: `FILES` before a run is queued, none while a form is filled in.

    Raises:
        ConfigError: a file cannot be read, or is invalid.
    """
    typed = config
    for field in files:
        if field == CODE_SETTING and allowed.data is not None:
            continue  # refused below, unread
        config = _with_text(config, field, allowed)
    sampler = sampler_of_run(config, allowed)
    refused = (*allowed.problems(config), *judges_of_run(config, allowed), *([sampler] if sampler else []))
    if refused:
        return Settled(typed, config, allowed, owner, refused, None, _GATE)
    adapter = None
    names: dict[str, Any] = {}
    if path := allowed.find_model(config.model):
        names["model"] = str(path)
    if config.init_adapter:
        folder = allowed.find_model(config.init_adapter)
        names["init_adapter"] = str(folder or config.init_adapter)
        adapter = _visible_adapter(names["init_adapter"])
    if config.teacher and (teacher := result_name(config.teacher, allowed)):
        names["teacher"] = teacher
    if config.task.traits.rewards_samples:
        names["rewards"] = settled_rewards(config.rewards, allowed)
    if config.target_modules == "auto" and (targets := target_modules(adapter or {})):
        names["target_modules"] = targets
    return Settled(typed, config.model_copy(update=names), allowed, owner, (), adapter, _GATE)


def _with_text(config: RunConfig, field: str, allowed: AllowedPaths) -> RunConfig:
    """The configuration with the content of the DeepSpeed file or chat template in place of its path or name."""
    name = getattr(config, field)
    if not name or is_text(config, field):
        return config
    if field == "chat_template" and (named := NAMED.get(name.strip().lower())):
        return config.model_copy(update={field: named})
    path = allowed.find(name.strip())
    if path is None or not path.is_file():
        raise ConfigError([Problem(field, name, _MISSING[field], _FIXES[field])])
    return config.model_copy(update={field: text_of(field, path)})


def is_text(config: RunConfig, field: str) -> bool:
    """True if the setting has the content of a file; False if it is empty, or names one."""
    value = getattr(config, field)
    if field == "deepspeed_config":
        return sharding.own_deepspeed(config) is not None
    if field == "reward_code":
        return bool(value) and "\n" in value
    return bool(value) and template.is_source(value)


def text_of(field: str, path: Path) -> str:
    """The content of the file of a setting, checked. Raises ConfigError if the file cannot be read, or is invalid."""
    try:
        return _READERS[field](path)
    except (OSError, ValueError) as error:
        words = str(error.strerror if isinstance(error, OSError) and error.strerror else error)
        words = words if words.endswith((".", "?")) else f"{words}."
        raise ConfigError([Problem(field, str(path), words, _FIXES[field])]) from None


def find_data(field: str, value: str, allowed: AllowedPaths) -> Dataset | Path | Problem:
    """The data set or file that a setting names, or what is wrong with the name."""
    if DATASET_ID.fullmatch(value):
        with database.read() as session:
            stored = session.get(Dataset, value)
        if stored is not None and datasets.path_of(stored).is_file():
            return stored
    if path := allowed.find(value):
        return path
    if allowed.data is None:
        return Problem(field, value, "is neither a file nor a data set id.", _DATA_FIX)
    return Problem(field, value, "is not a data set id.", _UPLOAD_FIX)


def find_model(value: str, allowed: AllowedPaths = EVERYTHING) -> Path | None:
    """The model's folder or file on this machine; None for a hub id. Raises ConfigError if the user may not read it."""
    if problem := allowed.model(value):
        raise ConfigError([problem])
    return allowed.find_model(value)


def machine_of(engine: EngineName = EngineName.AUTO) -> Machine:
    """The machine that runs are checked against: that of the engine if it has its own, else this one, or any if LATHE_BROKER_URL
    allows workers on other machines."""
    from worker.machine import devices

    used = get_settings()
    own = ENGINES[used.chosen_engine(engine)].machine(used)
    return own or (A_CLUSTER if used.broker_url else devices.machine())


def target_modules(adapter: dict[str, Any]) -> str:
    """The target modules in an adapter's adapter_config.json; empty if it names none."""
    targets = adapter.get("target_modules")
    if isinstance(targets, str):
        return targets
    return ", ".join(sorted(map(str, targets))) if isinstance(targets, list) else ""


def resolve(config: RunConfig) -> RunConfig:
    """The configuration for the training process: ids of data sets and of the initial adapter become paths on this machine.

    Downloads what is missing here, which takes minutes: call it outside of a transaction.

    Raises:
        ConfigError: one of them was deleted, or its file is not on this machine.
    """
    problems: list[Problem] = []
    paths: dict[str, str | None] = {}
    for field in data_sets.FIELDS:
        resolved = [
            replace(source, path=_stored_path(field, source.path, problems))
            if DATASET_ID.fullmatch(source.path)
            else source
            for source in data_sets.sources(getattr(config, field))
        ]
        if resolved:
            paths[field] = data_sets.written(resolved)
    if config.init_adapter:
        folder = _adapter_folder(config.init_adapter)
        paths["init_adapter"] = str(folder) if folder else None
        if folder is None:
            fix = "Copy the adapter to this machine, or clone the run and choose another one."
            problems.append(Problem("init_adapter", config.init_adapter, "is not on this machine.", fix))
    if config.teacher and (teacher := find_result("teacher", config.teacher)):
        problems += [teacher] if isinstance(teacher, Problem) else []
        paths["teacher"] = str(teacher)
    if config.task.traits.rewards_samples:
        paths["rewards"], missing = resolved_rewards(config.rewards)
        problems += missing
    if problems:
        raise ConfigError(problems)
    return config.model_copy(update=paths)


def _stored_path(field: str, dataset_id: str, problems: list[Problem]) -> str:
    """The path of a stored data set; adds to `problems` if it was deleted or its file is missing."""
    try:
        with database.read() as session:
            dataset = datasets.get(session=session, dataset_id=dataset_id)
    except DatasetNotFound:
        problems.append(Problem(field, dataset_id, "was deleted.", "Clone the run and choose another data set."))
        return dataset_id
    path = datasets.path_of(dataset)
    if not dataset_files.present(path, dataset.sha256):
        message = f"is not on this machine ({path})."
        fix = "All workers need the same data folder or LATHE_STORE_URL."
        problems.append(Problem(field, dataset_id, message, fix))
    return str(path)


def _visible_adapter(name: str) -> dict[str, Any] | None:
    """The adapter_config.json of a settled adapter, if it is a path or of a run that the user sees."""
    folder = _adapter_folder(name)
    if folder is None or (local_path(name) is None and _seen_run(name) != name):
        return None
    try:
        values = json.loads(read_regular(folder / ADAPTER_CONFIG, _MOST_ADAPTER_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


def settled_rewards(text: str, allowed: AllowedPaths) -> str:
    """Rewards with the absolute path or the whole id of the run of each reward model."""

    def named(name: str) -> dict[str, str] | None:
        found = result_name(name, allowed)
        return {"model" if found.startswith("/") else "run": found} if found else None

    return with_reward_models(text, named)


def resolved_rewards(text: str) -> tuple[str, list[Problem]]:
    """Rewards with the folder of each reward model, and the problems of those that are not here."""
    folders = {model.name: find_result("rewards", model.name) for model in reward_models(text)}
    found = {name: {"model": str(folder)} for name, folder in folders.items() if isinstance(folder, Path)}
    return with_reward_models(text, found.get), [one for one in folders.values() if isinstance(one, Problem)]


def find_result(field: str, name: str) -> Path | Problem | None:
    """The folder of a settled model besides the trained one: of this path, or the result of a run that the user sees; None for a
    hub id."""
    path = local_path(name)
    if path and path.exists():
        return path
    if not _WHOLE_RUN_ID.fullmatch(name):
        return None
    if _seen_run(name) != name:
        return Problem(field, name, "is no run.", _RESULT_FIX)
    fix = "Wait until it has finished, copy its folder to this machine, or choose another model."
    return saved_result(get_settings().runs_dir / name) or Problem(field, name, "has no result on this machine.", fix)


def result_name(name: str, allowed: AllowedPaths) -> str | None:
    """The absolute path of a model, or the whole id of the run that the name means; None for a hub id."""
    path = allowed.find_model(name)
    return str(path) if path else _seen_run(name)


def _seen_run(name: str) -> str | None:
    """The id of the run with this id, or the only one whose id begins so, if the user sees it."""
    try:
        if not database.has_tables():
            return None
        with database.read() as session:
            matches = runs.with_id(session, Run, name)
    except database.UNREACHABLE:  # the checks before Start say so
        return None
    return matches[0].id if len(matches) == 1 else None


def _adapter_folder(name: str) -> Path | None:
    """The folder of a settled adapter: of this path, or the result of the run with this id; None if there is none."""
    folder = result_dir(get_settings().runs_dir / name, adapts=True) if RUN_ID.fullmatch(name) else local_path(name)
    return folder.absolute() if folder and (folder / ADAPTER_CONFIG).is_file() else None
