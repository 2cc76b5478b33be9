"""`lathe.json` in the folder of a result: what is needed to make the same run again, and to see what differs elsewhere."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import try_to_load_from_cache

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.errors import UserError
from training.run_folder.lineage import Lineage
from training.run_folder.model_card import hardware, shared, versions
from training.run_folder.paths import RECORD_FILE

VERSION = 1
_MOST_BYTES = 4 * 2**30  # of weights that are hashed whole; larger files count by size and header
_HEADER_BYTES = 2**20
_SMALL_FILES = (
    "config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


def write_record(folder: Path, config: RunConfig, summary: dict[str, Any], lineage: Lineage, machine: Machine) -> None:
    """Writes lathe.json into the folder of a result.

    Raises:
        OSError: the disk is full.
    """
    values = {
        "version": VERSION,
        "run": lineage.run,
        "name": lineage.name,
        "parent": lineage.parent,
        "attempts": lineage.attempts,
        "settings": shared(config).model_dump(mode="json", exclude_defaults=True),
        "data": [asdict(source) for source in lineage.data],
        "model": {
            "name": shared(config).model,
            "revision": config.revision,
            "local": Path(config.model).is_dir(),
            "files": model_files(config),
        },
        "template_sha256": template_hash(folder),
        "packages": dict(versions()),
        "hardware": hardware(machine, int((summary.get("strategy") or {}).get("world_size", 1))),
        "processes": config.num_processes,
        "seed": config.seed,
    }
    (folder / RECORD_FILE).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def read_record(folder: Path) -> dict[str, Any]:
    """The record in the folder of a result, or in the file itself.

    Raises:
        UserError: there is none, or a newer Lathe wrote it.
    """
    file = folder / RECORD_FILE if folder.is_dir() else folder
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        version, known = int(found["version"]), isinstance(found["settings"], dict)
    except (OSError, ValueError, KeyError, TypeError):
        fix = f"Give the folder of an adapter or model that Lathe trained: it contains {RECORD_FILE}."
        raise UserError("--like", str(folder), f"has no readable {RECORD_FILE}.", fix) from None
    if version > VERSION or not known:
        raise UserError("--like", str(folder), f"was written by a newer Lathe (version {version}).", "Update Lathe.")
    return dict(found)


def model_files(config: RunConfig) -> dict[str, str]:
    """A hash of each file of the base model that is on this machine; empty if none is.

    Small files and weights up to 4 GiB: `sha256:HEX` of the bytes. Larger weights: `header:BYTES:HEX`, their size and the SHA-256
    of their first MiB, which holds the names, types and shapes of the tensors.
    """
    files = _local_files(config)
    large = sum(file.stat().st_size for file in files if file.suffix == ".safetensors") > _MOST_BYTES
    return {file.name: _digest(file, whole=not large or file.suffix != ".safetensors") for file in files}


def _local_files(config: RunConfig) -> list[Path]:
    folder = Path(config.model).expanduser()
    if not folder.is_dir():
        cached = try_to_load_from_cache(config.model, "config.json", revision=config.revision or "main")
        if not isinstance(cached, str):
            return []
        folder = Path(cached).parent
    small = [folder / name for name in _SMALL_FILES]
    return [file for file in (*small, *sorted(folder.glob("*.safetensors"))) if file.is_file()]


def _digest(file: Path, *, whole: bool) -> str:
    with file.open("rb") as stream:
        if whole:
            return f"sha256:{hashlib.file_digest(stream, 'sha256').hexdigest()}"
        return f"header:{file.stat().st_size}:{hashlib.sha256(stream.read(_HEADER_BYTES)).hexdigest()}"


def template_hash(folder: Path) -> str:
    """The SHA-256 of the chat template in a folder; empty if it has none."""
    file = folder / "chat_template.jinja"
    if file.is_file():
        return hashlib.sha256(file.read_bytes()).hexdigest()
    try:
        text = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template")
    except (OSError, ValueError, AttributeError):
        return ""
    return hashlib.sha256(text.encode()).hexdigest() if isinstance(text, str) else ""
