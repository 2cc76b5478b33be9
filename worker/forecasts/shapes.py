"""What the config.json of a model and its class say: its shape, and the modules that a method trains.

The config.json of a hub model is fetched before its weights are. No token is sent: users of the pages must not read what only the
server's owner may read. Classes are read by processes with limits (training/models/layers.py, training/models/target_modules.py).
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from training import json_files
from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.config.task import Task
from training.errors import Problem
from training.files import read_regular, write_whole
from training.model_info.config_json import ModelError, local_path, read_config
from training.model_info.families import UnknownLayers, shape_of, with_limits
from training.model_info.folder import adapter_base
from training.model_info.shape import ModelShape, from_document
from training.rewards.rewards import reward_models
from worker.allowed_paths import HUB_ID
from worker.machine import model_files, programs
from worker.machine.programs import ProgramError
from worker.runs.settle import Settled, find_result
from worker.settings import get_settings

_MOST_BYTES = 2**20
_ANSWER_SECONDS = 15
_FIX = "Download its config.json (the weights are not needed) and give the folder or the file."

Read = Callable[[str, str | None, Task], ModelShape]
"""`shape_at`, or what remembers its answers."""
Targets = dict[str, Any]
"""The `Targets` of training/models/target_modules.py as JSON."""


def shape_at(model: str, revision: str | None = None, task: Task = Task.SFT) -> ModelShape:
    """The shape of a model as a run of this task loads it, from its folder (weights are optional), from its config.json, or from
    that of a hub model if it was fetched. Without a formula for its layers they are read from its class, once (some seconds).

    Raises:
        ModelError: there is no config.json, it lacks values, or neither a formula nor a class knows its layers.
    """
    file = config_file(model, revision)
    values = read_config(file)
    try:
        return shape_of(values, scores=task.traits.outputs)
    except UnknownLayers as unknown:
        return with_limits(_shape_of_class(file, task, unknown), values)


def of_run(settled: Settled, read: Read = shape_at) -> ModelShape:
    """The shape of the model of a run, with those of its teacher and reward models as far as they are on this machine. `read` is
    `shape_at`, or remembers what it returned.

    Raises:
        ConfigError: the user may not read the model.
        ModelError: as `shape_at`.
    """
    config = settled.readable
    shape = read(config.model, config.revision, config.task)
    if config.task.traits.has_teacher and config.teacher:
        return replace(shape, teacher=_beside(config, settled.teacher, config.teacher, read, Task.SFT))
    if not config.task.traits.rewards_samples:
        return shape
    models = reward_models(config.rewards)
    found = (_beside(config, find_result("rewards", one.name), one.name, read, Task.REWARD) for one in models)
    known = tuple((other, one.quantization.value) for other, one in zip(found, models, strict=True) if other)
    return replace(shape, reward_models=known)


def _beside(config: RunConfig, folder: Path | Problem | None, name: str, read: Read, task: Task) -> ModelShape | None:
    """The shape of a model beside the trained one, which is in a folder or on the hub; None if it is not known."""
    base = adapter_base(folder) if isinstance(folder, Path) else None
    with suppress(ModelError):
        return read(config.model if base == "" else base or str(folder or name), None, task)
    return None


def _shape_of_class(config: Path, task: Task, unknown: UnknownLayers) -> ModelShape:
    """The shape of the class that transformers builds from a config.json, stored by file, task and version of transformers."""
    library = ""
    with suppress(PackageNotFoundError):
        library = version("transformers")
    content = hashlib.sha256(
        read_regular(config, json_files.MOST_FILE_BYTES) + f"\n{task.value} {library}".encode()
    ).hexdigest()
    stored = get_settings().data_dir / "model-shapes" / f"{content}.json"
    with suppress(OSError, ValueError):
        return from_document(json.loads(stored.read_text(encoding="utf-8")))
    document = _read_class(config, task, str(unknown.problem.value))
    shape = from_document(document)
    stored.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_whole(stored, json.dumps(document))
    return shape


def _read_class(config: Path, task: Task, name: str) -> Any:
    try:
        text = json.dumps({"model": str(config.resolve()), "task": task.value})
        answer = programs.run_for_json(programs.LAYERS, [], programs.LAYERS.limits(config.resolve()), text=text)
    except ProgramError as error:
        message = f"cannot say how much memory it needs: its class cannot be read here ({error})."
        fix = "Install the training packages, or forecast it on a machine that has them."
        raise ModelError(name, message, fix) from None
    if problem := answer.get("problem"):
        message = f"cannot say how much memory it needs: transformers {problem['message']}"
        raise ModelError(name, message, problem["fix"])
    return answer["shape"]


def hub_config(model: str, revision: str | None = None) -> Path | None:
    """The config.json of a hub model that was fetched, or that the hub's client has in its cache; None if there is none."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    if not HUB_ID.fullmatch(model):
        return None
    fetched = _fetched(model, revision)
    if fetched.is_file():
        return fetched
    try:
        cached = try_to_load_from_cache(model, "config.json", revision=revision)
    except HFValidationError:  # stricter than our pattern
        return None
    return Path(cached) if isinstance(cached, str) else None


def config_file(model: str, revision: str | None = None) -> Path:
    """The config.json of a model in a folder, of the file itself, or of a hub model if it was fetched.

    Raises:
        ModelError: there is none.
    """
    with suppress(OSError, RuntimeError, ValueError):  # too long, with a NUL, or the home of an unknown user
        path = local_path(model)
        config = path / "config.json" if path and path.is_dir() else path
        if config and config.is_file():
            return config
    if fetched := hub_config(model, revision):
        return fetched
    raise ModelError(model, "the model is not on this machine.", _FIX)


def fetch(model: str, revision: str | None = None) -> Path:
    """Downloads a model's config.json.

    Raises:
        ModelError: the hub does not answer, or has no such public model or file.
    """
    with _asking(model) as api:
        size = _config_bytes(api, model, revision)
        if size > _MOST_BYTES:
            raise ModelError(model, f"its config.json has {size:,} bytes.", _FIX)
        with tempfile.TemporaryDirectory(dir=get_settings().data_dir) as folder:
            path = Path(api.hf_hub_download(model, "config.json", revision=revision, local_dir=folder))
            fetched = _fetched(model, revision)
            fetched.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(path, fetched)
        return fetched


def check_on_hub(model: str, revision: str | None = None) -> None:
    """Asks the hub for a model's config.json, without downloading it.

    Raises:
        ModelError: as `fetch`.
    """
    with _asking(model) as api:
        _config_bytes(api, model, revision)


def _config_bytes(api: Any, model: str, revision: str | None) -> int:
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(model, "config.json", revision=revision, endpoint=os.environ.get("HF_ENDPOINT"))
    return int(api.get_hf_file_metadata(url=url, timeout=_ANSWER_SECONDS).size or 0)


@contextmanager
def _asking(model: str) -> Iterator[Any]:
    """The client of the hub, without a token; its errors as a ModelError."""
    from huggingface_hub import HfApi, errors

    endpoint = os.environ.get("HF_ENDPOINT")
    if not HUB_ID.fullmatch(model):
        raise ModelError(model, "is not a hub id.", "Write owner/name.")
    try:
        yield HfApi(endpoint=endpoint, token=False)
    except ModelError:
        raise
    except errors.GatedRepoError:
        raise ModelError(model, "is gated: its owner must grant access.", _FIX) from None
    except errors.EntryNotFoundError:
        raise ModelError(model, "has no config.json.", "Give a model in the format of transformers.") from None
    except errors.RevisionNotFoundError:
        raise ModelError(model, "has no such revision.", "Leave the revision empty for the main branch.") from None
    except errors.RepositoryNotFoundError:
        raise ModelError(model, "is not a public model on the hub.", "Check its owner and name.") from None
    except Exception as error:  # of the client and of its HTTP library, which differ by version
        if not isinstance(error, OSError) and not type(error).__module__.startswith(("httpx", "httpcore", "requests")):
            raise
        message = (
            f"cannot be downloaded: {endpoint or 'https://huggingface.co'} does not answer ({type(error).__name__})."
        )
        raise ModelError(model, message, _FIX) from None


def _fetched(model: str, revision: str | None) -> Path:
    name = f"{model}@{revision or 'main'}".replace("/", "--")
    return get_settings().data_dir / "model-configs" / name / "config.json"


def list_targets(settled: Settled) -> Targets:
    """Counts of the parameters that a run trains, and the modules of its model in groups.

    Raises:
        ConfigError: the model cannot be built, no module matches, or the user may not read the model.
    """
    config = settled.readable
    limits = programs.TARGETS.limits(*model_files.files_of([config.model], config.revision))
    try:
        answer: Targets = programs.run_for_json(programs.TARGETS, [], limits, text=config.model_dump_json())
    except ProgramError as error:
        fix = "Check that the model can be loaded and that the training packages are installed on this machine."
        raise ConfigError([Problem("model", settled.typed.model, f"cannot be inspected ({error}).", fix)]) from None
    if "problem" in answer:
        raise ConfigError([Problem(**answer["problem"])])
    return answer
