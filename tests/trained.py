"""A catalogue of trainings that tests read: each is trained once, by the first test that asks for it.

`trained("dpo_lora")` has the records, checkpoints and result of one. `.pytest_cache/trained` keeps them for later sessions, until a
file changes that decides how they come out. A test that changes a run's folder works on a `copy_of` it; one of faults, signals or
stops trains for itself (trainer_process.py).
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from paths import ROOT, TESTS
from tiny import make_data, make_model
from trainer_process import Trained, start, train_here

CACHE = ROOT / ".pytest_cache" / "trained"
KEPT_SECONDS = 86_400  # without use
SOURCES = ("training", "constraints.txt", "worker/supervision/launcher.py", "benchmarks/matrix/inputs.py")
HELPERS = ("trained.py", "trainer_process.py", "tiny.py", "warm.py", "programs/warm_launcher.py")


@dataclass(frozen=True)
class Recipe:
    """A training: names of MODELS and DATA, and settings besides `trainer_process.SMALL`."""

    model: str = "llama"
    data: str = "counting"
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> tuple[Path, Path]:
        return model(self.model), data(self.data)

    def train(self, run_dir: Path, **changes: Any) -> Trained:
        """Trains, or continues, in `run_dir`: a single rank in this process, several as forks of the warm launcher."""
        settings = self.settings | changes
        if settings.get("num_processes", 1) == 1:
            return train_here(run_dir, *self.inputs, **settings)
        run = start(run_dir, *self.inputs, **settings)
        assert run.finish() == 0, run.log()
        return run


MODELS: dict[str, Callable[[Path], object]] = {"llama": make_model}
DATA: dict[str, Callable[[Path], object]] = {"counting": make_data}
RECIPES: dict[str, Recipe] = {
    "sft_lora": Recipe(),
    "verified": Recipe(
        settings={"max_steps": 1, "eval_steps": 0, "eval_split": 4, "verify_rows": 2, "precision": "fp32"}
    ),
}


def model(name: str) -> Path:
    """The folder of a model, read-only."""
    return _made(f"model-{name}", name, MODELS[name])


def data(name: str) -> Path:
    """A data file, read-only."""
    return _made(f"data-{name}", f"{name}.jsonl", DATA[name])


def trained(recipe: str | Recipe) -> Trained:
    """The finished run of a recipe, read-only."""
    recipe = RECIPES[recipe] if isinstance(recipe, str) else recipe
    return _trained(json.dumps([recipe.model, recipe.data, recipe.settings], sort_keys=True))


def copy_of(recipe: str | Recipe, run_dir: Path, *without: str) -> Path:
    """A copy of a finished run's folder, for a test that changes it; `without` are patterns of names to omit."""
    ignored = shutil.ignore_patterns(*without)
    return Path(shutil.copytree(trained(recipe).run_dir, run_dir, ignore=ignored, dirs_exist_ok=True))


@cache
def _trained(recipe: str) -> Trained:
    key = hashlib.sha256(recipe.encode()).hexdigest()[:16]
    run = Trained(_made(f"run-{key}", "run", Recipe(*json.loads(recipe)).train), process=None)
    run.read()
    return run


def _made(key: str, name: str, make: Callable[[Path], object]) -> Path:
    """The file or folder `name` that `make` has made once, for all processes and sessions."""
    folder = _sources_folder() / key
    with _locked(folder):
        if not (folder / "complete").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder / name)
            (folder / "complete").touch()
    return folder / name


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@cache
def _sources_folder() -> Path:
    """The folder of what was made with these very sources; those of others that nobody uses any more are removed."""
    digest = hashlib.sha256()
    for source in [ROOT / name for name in SOURCES] + [TESTS / name for name in HELPERS]:
        for file in sorted(source.rglob("*")) if source.is_dir() else [source]:
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(f"{file} {file.stat().st_size}\n".encode() + file.read_bytes())
    folder = CACHE / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "used").touch()
    for used in CACHE.glob("*/used"):
        if time.time() - used.stat().st_mtime > KEPT_SECONDS:
            shutil.rmtree(used.parent, ignore_errors=True)
    return folder
