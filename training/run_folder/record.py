"""What a run was made of: `lineage.json` in its folder (written by the supervisor), and `lathe.json` in the folder of its result,
which has what is needed to make the same run again, and to see what differs elsewhere."""

import hashlib
import json
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from training import json_files
from training.config.data_sets import FIELDS, sources, written
from training.config.machine import Machine
from training.config.run_config import OLDER, RunConfig
from training.errors import UserError
from training.files import sha256, write_whole
from training.model_info.config_json import local_folder
from training.rewards.rewards import with_reward_models
from training.run_folder.paths import LINEAGE_FILE, RECORD_FILE, is_result

VERSION = 1
_MOST_BYTES = 4 * 2**30  # of weights that are hashed whole; larger files count by size and header
_HEADER_BYTES = 2**20
_SMALL_FILES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"
)  # fmt: skip
_PACKAGES = (
    "lathe-workbench", "torch", "transformers", "peft", "trl", "accelerate", "deepspeed", "bitsandbytes", "torchao", "torch-optimi",
    "tokenizers", "safetensors", "numpy",
)  # fmt: skip


@dataclass(frozen=True)
class DataSource:
    """A data file of a run: its role, its name at upload, and the SHA-256 of its bytes."""

    role: str
    name: str
    sha256: str


@dataclass(frozen=True)
class Lineage:
    """`parent` is the run from which this one was cloned; `attempts` is more than 1 if it was resumed; `teacher` is the model from
    which it learned, in words."""

    run: str = ""
    name: str = ""
    parent: str = ""
    attempts: int = 1
    data: list[DataSource] = field(default_factory=list)
    teacher: str = ""

    @property
    def held_out(self) -> tuple[str, str]:
        """Names and SHA-256 of the data that the held-out rows are from."""
        own = [one for one in self.data if one.role.startswith("validation_data")]
        used = own or [one for one in self.data if one.role.startswith("data")]
        return ", ".join(one.name for one in used), " ".join(one.sha256 for one in used)

    def write(self, run_dir: Path) -> None:
        """Writes the file atomically. Raises OSError if the disk is full."""
        write_whole(run_dir / LINEAGE_FILE, json.dumps(asdict(self), indent=2))

    @classmethod
    def read(cls, run_dir: Path) -> "Lineage":
        """The lineage in the run's folder; empty for a run without a supervisor."""
        try:
            values = json_files.read(run_dir / LINEAGE_FILE)
        except FileNotFoundError:
            return cls()
        return cls(**(values | {"data": [DataSource(**source) for source in values["data"]]}))


def write_record(folder: Path, config: RunConfig, summary: dict[str, Any], lineage: Lineage, machine: Machine) -> None:
    """Writes lathe.json into the folder of a result. Raises OSError if the disk is full."""
    values = {
        "version": VERSION,
        **asdict(lineage),
        "settings": _settings(shared(config)),
        "model": {
            "name": shared(config).model,
            "revision": config.revision,
            "local": local_folder(config.model) is not None,
            "files": model_files(config),
        },
        "template_sha256": template_hash(folder),
        "packages": dict(versions()),
        "hardware": hardware(machine, int((summary.get("strategy") or {}).get("world_size", 1))),
        "processes": config.num_processes,
        "seed": config.seed,
    }
    (folder / RECORD_FILE).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _settings(config: RunConfig) -> dict[str, Any]:
    """The settings without those that have their default; those whose default was once another one are always there."""
    values = config.model_dump(mode="json")
    defaults = config.model_dump(mode="json", exclude_defaults=True)
    return {name: value for name, value in values.items() if name in defaults or name in OLDER}


def read_record(folder: Path, field: str = "--like") -> dict[str, Any]:
    """The record in the folder of a result, or in the file itself, which `field` names.

    Raises:
        UserError: there is none, or a newer Lathe wrote it.
    """
    file = folder / RECORD_FILE if folder.is_dir() else folder
    fix = f"Give the folder of an adapter or model that Lathe trained: it contains {RECORD_FILE}."
    unreadable = UserError(field, str(folder), f"has no readable {RECORD_FILE}.", fix)
    try:
        values = json_files.read(file)
        version, settings = int(values["version"]), values["settings"]
    except (OSError, ValueError, KeyError, TypeError):
        raise unreadable from None
    if version <= VERSION and not isinstance(settings, dict):
        raise unreadable
    if version > VERSION:
        raise UserError(field, str(folder), f"was written by a newer Lathe (version {version}).", "Update Lathe.")
    return dict(values) | {"settings": OLDER | settings if isinstance(settings, dict) else settings}


def model_files(config: RunConfig) -> dict[str, str]:
    """A hash of each file of the base model that is on this machine; empty if none is.

    Small files and weights up to 4 GiB: `sha256:HEX` of the bytes. Larger weights: `header:BYTES:HEX`, their size and the SHA-256
    of their first MiB, which holds the names, types and shapes of the tensors.
    """
    if (folder := local_model(config)) is None:
        return {}
    return _digests([folder / name for name in (*_SMALL_FILES, *_weights_in(folder))])


def weights_digest(folder: Path) -> str:
    """One SHA-256 for all weights in a folder, of large ones as `model_files` hashes them."""
    found = _digests([folder / name for name in _weights_in(folder)])
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def local_model(config: RunConfig) -> Path | None:
    """The folder of the base model on this machine, also if it is in the hub's cache; None if it is on the hub only."""
    from huggingface_hub import try_to_load_from_cache

    if folder := local_folder(config.model):
        return folder
    cached = try_to_load_from_cache(config.model, "config.json", revision=config.revision or "main")
    return Path(cached).parent if isinstance(cached, str) else None


def _weights_in(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.glob("*.safetensors"))


def _digests(files: Sequence[Path]) -> dict[str, str]:
    """A hash of each of these files that exists."""
    found = [file for file in files if file.is_file()]
    large = sum(file.stat().st_size for file in found if file.suffix == ".safetensors") > _MOST_BYTES
    return {file.name: _digest(file, whole=not large or file.suffix != ".safetensors") for file in found}


def _digest(file: Path, *, whole: bool) -> str:
    if whole:
        return f"sha256:{sha256(file)}"
    with file.open("rb") as stream:
        return f"header:{file.stat().st_size}:{hashlib.sha256(stream.read(_HEADER_BYTES)).hexdigest()}"


def template_hash(folder: Path) -> str:
    """The SHA-256 of the chat template in a folder; empty if it has none."""
    return hashlib.sha256(text.encode()).hexdigest() if (text := saved_template(folder)) else ""


def saved_template(folder: Path) -> str:
    """The chat template in a folder; empty if it has none."""
    try:
        if (file := folder / "chat_template.jinja").is_file():
            return file.read_bytes().decode()
        text = json_files.read(folder / "tokenizer_config.json").get("chat_template")
    except (OSError, ValueError, AttributeError):
        return ""
    return text if isinstance(text, str) else ""


def shared(config: RunConfig) -> RunConfig:
    """The configuration with absolute paths shortened to their last part; a teacher or reward model that is the result of a run to
    its id."""
    local = {
        name: written([replace(source, path=_last(source.path)) for source in found])
        for name in FIELDS
        if (found := sources(getattr(config, name)))
    }
    if config.teacher:
        local["teacher"] = teacher_name(config.teacher)
    local["rewards"] = with_reward_models(
        config.rewards, lambda name: {"run" if _is_of_run(Path(name)) else "model": teacher_name(name)}
    )
    return config.model_copy(update={"model": _last(config.model), **local})


def teacher_name(teacher: str) -> str:
    """The name of a teacher without its folder's path; of the result of a run the run's id."""
    path = Path(teacher)
    return path.parent.name if _is_of_run(path) else _last(teacher)


def _is_of_run(path: Path) -> bool:
    return path.is_absolute() and is_result(path)


def _last(path: str) -> str:
    return Path(path).name if Path(path).is_absolute() else path


def versions() -> list[tuple[str, str]]:
    """The versions of Python and of the installed packages that affect a run."""
    installed = [("python", platform.python_version())]
    for name in _PACKAGES:
        try:
            installed.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return installed


def hardware(machine: Machine, processes: int) -> str:
    """The GPUs or the CPU of the run, without the machine's name."""
    if machine.kind == "cuda":
        return ", ".join(sorted(set(machine.names[:processes]))) + (f", {processes} of them" if processes > 1 else "")
    return f"CPU ({platform.machine()})"
