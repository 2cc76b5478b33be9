"""A catalogue of trainings that tests read: each is trained once, by the first test that asks for it.

`trained("sft_lora")` has the records, checkpoints and result of one. `.pytest_cache/trained` keeps them for later sessions, until a
file changes that decides how they come out. A test that changes a run's folder works on a `copy_of` it; one of faults, signals or
stops trains for itself (trainer_process.py).
"""

import contextlib
import fcntl
import hashlib
import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import warm
from paths import ROOT, TESTS
from tiny import make_data, make_model
from trainer_process import Trained, start, train_here

from benchmarks.matrix.inputs import make_data as make_task_data
from benchmarks.matrix.inputs import make_models
from training.config.task import Task
from training.run_folder.record import DataSource, Lineage

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
        run_dir.mkdir(exist_ok=True)
        file = self.inputs[1]
        source = DataSource("Training data", file.name, hashlib.sha256(file.read_bytes()).hexdigest())
        Lineage("run12", "a run", "run11", 2, [source]).write(run_dir)
        if settings.get("num_processes", 1) == 1:
            return train_here(run_dir, *self.inputs, **settings)
        run = start(run_dir, *self.inputs, **settings)
        assert run.finish() == 0, run.log()
        return run


def _with_dropout(folder: Path) -> None:
    make_model(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"attention_dropout": 0.1}))


def _of_other_weights(folder: Path, name: str) -> None:
    """A model with the tokens of another one, and random weights of its own."""
    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(model(name), folder)
    changed = AutoModelForCausalLM.from_pretrained(folder)
    generator = torch.Generator().manual_seed(1)
    for weight in changed.parameters():
        weight.data += 0.3 * torch.randn(weight.shape, generator=generator)
    changed.save_pretrained(folder)


def _tied(folder: Path) -> None:
    make_model(folder, tied=True)


# As Qwen3's: the last answer begins with an empty thinking block, which a prompt has only without thinking.
THINKING_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['role'] == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)


def _qwen3(folder: Path) -> None:
    _family("qwen3")(folder)
    (folder / "chat_template.jinja").write_text(THINKING_TEMPLATE)


def _family(name: str) -> Callable[[Path], object]:
    def make(folder: Path) -> None:
        import gguf_families  # imports torch

        gguf_families.make(name, folder)

    return make


def _rows(rows: list[dict[str, Any]]) -> Callable[[Path], object]:
    return lambda file: file.write_text("".join(json.dumps(row) + "\n" for row in rows))


def _chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def _of_task(task: Task) -> Callable[[Path], object]:
    return lambda file: make_task_data(file.parent)[task].rename(file)


def _with_a_long_row() -> list[dict[str, Any]]:
    rows = [{"prompt": f"row {row}: ", "completion": "abc" * (1 + row % 5)} for row in range(22)]
    rows[LONG_ROW]["completion"] = "x" * 400
    return rows


LONG_ROW = 9
FAMILIES = ("llama-3.2", "qwen3", "gemma3", "gpt2")
MODELS: dict[str, Callable[[Path], object]] = {
    "llama": make_model,
    "llama_of_one_layer": lambda folder: make_model(folder, layers=1),
    "llama_with_dropout": _with_dropout,
    "tied_llama": _tied,
    **{name: _family(name) for name in FAMILIES},
    "qwen3": _qwen3,
    "plain_llama": lambda folder: make_models(folder.parent / "both")[0].rename(folder),
    "t5": lambda folder: make_models(folder.parent / "both")[1].rename(folder),
    "teacher": lambda folder: _of_other_weights(folder, "plain_llama"),
}
DATA: dict[str, Callable[[Path], object]] = {
    "counting": make_data,
    "chats": _rows([_chat(f"say  {n}?", f"{n}!") for n in range(40)]),
    "classes": _rows([{"text": f"text {n}", "label": ("good", "bad")[n % 2]} for n in range(40)]),
    "pairs": _rows([{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(40)]),
    **{task.value: _of_task(task) for task in Task},
    "one_long": _rows(_with_a_long_row()),
}
PARITY = {"verify_rows": 3, "max_steps": 4, "eval_split": 4, "eval_steps": 0, "precision": "fp32"}
# Dropout, a checkpoint within an epoch, and one of the last step.
RESUMABLE = {
    "max_steps": 4, "save_steps": 2, "eval_split": 0, "eval_steps": 0, "micro_batch_size": 2, "gradient_accumulation_steps": 2,
    "max_length": 480, "lora_dropout": 0.1, "learning_rate": 1e-2, "lr_scheduler": "cosine", "weight_decay": 0.1,
    "precision": "fp32",
}  # fmt: skip


def resumable(strategy: str, method: str, **settings: Any) -> Recipe:
    """A training of two ranks, or of one if the strategy is single."""
    ranks = {"strategy": strategy, "num_processes": 1 if strategy == "single" else 2, "method": method}
    return Recipe("llama_with_dropout", "one_long", RESUMABLE | ranks | settings)


def of_family(name: str, **settings: Any) -> Recipe:
    """A training on chats whose result is compared in each form; its model has a family's tokenizer and chat template."""
    options = {"chat_template_kwargs": "enable_thinking=false"} if name == "qwen3" else {}
    return Recipe(name, "chats", PARITY | options | settings)


TEN_STEPS = {"max_steps": 10, "learning_rate": 1e-2, "eval_steps": 10, "warmup": 0}
RECIPES: dict[str, Recipe] = {
    **{
        f"task_{task.value}_{method}": Recipe(
            "t5" if task is Task.SEQ2SEQ else "plain_llama",
            task.value,
            TEN_STEPS | {"task": task.value, "method": method},
        )
        for task in Task
        if not task.traits.samples
        for method in ("lora", "full")
    },
    "sft_lora": Recipe(),
    "merged": Recipe(
        settings={
            "max_steps": 2,
            "eval_steps": 0,
            "learning_rate": 0.05,
            "merge_adapter": True,
            "answer_rows": 1,
            "max_new_tokens": 2,
        }
    ),
    "verified": Recipe(settings=PARITY | {"max_steps": 1, "verify_rows": 2}),
    "like": Recipe(settings={"max_steps": 1, "eval_steps": 0, "eval_split": 4, "lora_r": 5, "seed": 11}),
}


def model(name: str) -> Path:
    """The folder of a model, read-only."""
    return _made(f"model-{name}", name, MODELS[name], f"model({name!r})")


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
    made = Recipe(*json.loads(recipe))
    program = "" if made.settings.get("num_processes", 1) > 1 else f"_trained({recipe!r})"
    run = Trained(_made(f"run-{key}", "run", made.train, program), process=None)
    run.read()
    return run


def _made(key: str, name: str, make: Callable[[Path], object], program: str = "") -> Path:
    """The file or folder `name` that `make` has made once, for all processes and sessions.

    `program` is the same call for a process that has imported the training libraries, if this one has not.
    """
    folder = _sources_folder() / key
    if program and not (folder / "complete").exists() and "transformers.trainer" not in sys.modules:
        warm.run(f"import sys; sys.path.insert(0, {str(TESTS)!r}); import trained; trained.{program}")
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
