"""The names of the files and folders in a run's folder (docs/architecture.md says what they contain and who writes them), and of
the environment variables of its processes.
"""

import re
from pathlib import Path

CONFIG_FILE = "config.json"
LINEAGE_FILE = "lineage.json"
EVENTS_FILE = "events.jsonl"
LOG_FILE = "output.log"
SUPERVISOR_LOG = "supervisor.log"
RESERVE_FILE = ".reserve"
ANSWERS_FILE = "answers.jsonl"
CARD_FILE = "README.md"
RECORD_FILE = "lathe.json"
"""Both in the folder of a result."""
GGUF_FILE = "model.gguf"
PARITY_FOLDER = "parity"
"""The prompts, answers and logits with which forms of the result are compared."""
PARITY_FILE = "parity.json"
"""How the forms of the result compare with what was trained."""
STAGES_FILE = "stages.json"
"""That the result is saved whole, and what became of the stages after it (training/run_folder/stages.py)."""
TENSORBOARD_FOLDER = "tensorboard"
TRACKERS_FILE = "trackers.json"
"""The run's ids in trackers that assign their own."""
MERGED_FOLDER = "merged"
ARCHIVE_FILE = "adapter.zip"
MERGED_FILE = "merged.zip"
UNFINISHED_FOLDER = ".unfinished"
"""What is being made of the result."""
MANIFEST_FILE = "manifest.json"
"""In the folder of a checkpoint."""

RUN_VARIABLE = "LATHE_RUN"
"""The run's id: identifies its processes even without their parents."""
SUPERVISOR_VARIABLE = "LATHE_SUPERVISOR"
"""The process ID of the supervisor."""

LEASED_GPUS_VARIABLE = "LATHE_LEASED_GPUS"
"""The number of GPUs that the run's ranks on this machine must see; 0 on the CPU."""
PAUSE_VARIABLE = "LATHE_PAUSE_AT"
"""The step at which the run evaluates, saves a checkpoint and exits, for the decision of its sweep; not set for other runs."""

VLLM_VARIABLE = "LATHE_VLLM_COMMAND"
"""The command of vLLM, which then generates answers; not set where transformers does."""

_ADAPTER_FOLDER, _MODEL_FOLDER = "adapter", "model"
_CHECKPOINT_PREFIX = "checkpoint-"


def events_file(run_dir: Path, machine: int = 0) -> Path:
    """The records of the ranks on a machine of the run (0: the first one)."""
    return run_dir / (EVENTS_FILE if machine == 0 else f"events-{machine}.jsonl")


def result_dir(run_dir: Path, *, adapts: bool) -> Path:
    """The folder for the trained weights: an adapter or, after full fine-tuning, a model."""
    return run_dir / (_ADAPTER_FOLDER if adapts else _MODEL_FOLDER)


def saved_result(run_dir: Path) -> Path | None:
    """The folder with the trained weights; None if they are not saved yet."""
    return next((folder for adapts in (True, False) if (folder := result_dir(run_dir, adapts=adapts)).is_dir()), None)


def is_result(folder: Path) -> bool:
    """True for the folder of the trained weights of a run."""
    return folder.name in (_ADAPTER_FOLDER, _MODEL_FOLDER) and (folder.parent / CONFIG_FILE).is_file()


def tokens_dir(run_dir: Path) -> Path:
    """The folder for token stores if LATHE_TOKENS names none."""
    return run_dir / "tokens"


def rewards_dir(run_dir: Path) -> Path:
    """The folder with the code of the rewards, in a folder for each rank: ranks start at the same time."""
    return run_dir / "rewards"


def sampler_dir(run_dir: Path) -> Path:
    """The folder from which vLLM reads the weights that are trained, while it draws samples."""
    return run_dir / "sampler"


def checkpoints_dir(run_dir: Path) -> Path:
    """The folder for checkpoints."""
    return run_dir / "checkpoints"


def checkpoint_dir(run_dir: Path, step: int) -> Path:
    """The folder for the checkpoint of an optimizer step."""
    return checkpoints_dir(run_dir) / f"{_CHECKPOINT_PREFIX}{step}"


def checkpoint_step(checkpoint: Path) -> int | None:
    """The optimizer step of a checkpoint, from its folder's name; None if it is not the name of a checkpoint."""
    step = re.fullmatch(rf"{_CHECKPOINT_PREFIX}(0|[1-9][0-9]{{0,17}})", checkpoint.name)
    return int(step[1]) if step else None
