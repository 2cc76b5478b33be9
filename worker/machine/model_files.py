"""What a confined program reads of models: their folders, and of those on the hub their files, which are downloaded before."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from training.model_info.config_json import local_path
from worker.machine import programs
from worker.machine.programs import ProgramError


def with_links(model: Path) -> Iterator[Path]:
    """A model's folder or file, and the folders of the files to which its links lead, as those of a hub's cache."""
    yield model
    links = [model, *model.iterdir()] if model.is_dir() else [model]
    yield from {link.resolve().parent for link in links if link.is_symlink()}


def files_of(models: Iterable[str | None], revision: str | None = None, needed: str = "config.json") -> list[Path]:
    """The files and folders of models, for `Program.limits`. `revision` is that of the first.

    The files of a hub model, without weights, are downloaded unless `needed` is here. What cannot be downloaded is not here either
    for the program that reads it, which says so.
    """
    found: list[Path] = []
    for number, name in enumerate(filter(None, models)):
        path = local_path(name)
        found += with_links(path) if path and path.exists() else _on_hub(name, None if number else revision, needed)
    return found


def _on_hub(model: str, revision: str | None, needed: str) -> Iterator[Path]:
    from huggingface_hub import constants, file_download, try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        here = isinstance(try_to_load_from_cache(model, needed, revision=revision), str)
    except HFValidationError:
        return
    if not here and not constants.HF_HUB_OFFLINE and not os.environ.get("HF_HUB_OFFLINE"):
        download(model, revision)
    yield Path(constants.HF_HUB_CACHE) / file_download.repo_folder_name(repo_id=model, repo_type="model")


def download(model: str, revision: str | None) -> None:
    """Downloads the small files of a hub model, as far as the hub answers."""
    limits = programs.HUB_FILES.limits(file_bytes=64 * 2**20)
    try:
        programs.run_limited(programs.HUB_FILES, [model, *([revision] if revision else [])], limits)
    except ProgramError:
        return
