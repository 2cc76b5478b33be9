"""Writes the weights of a checkpoint as a result: `python -m training.results.gathering RUN_FOLDER TARGET [STEP]`.

It writes what the run itself would have saved at that step, an adapter or a model. Shards of ZeRO and FSDP are gathered, which
needs one process and the base model.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from training.checkpointing.contents import check_missing
from training.checkpointing.resharding import read_shards
from training.checkpointing.weights import check_result
from training.config.choices import Precision, Strategy
from training.config.run_config import RunConfig
from training.errors import UserError
from training.files import whole_folder
from training.models.loading import load_tokenizer, load_trainable
from training.models.lora_init import export_plain_lora, initial_dir
from training.ranks.stopping import die_with_parent
from training.results.progress import Tell, exit_status, growing, printed, silent
from training.run_folder import checkpoints
from training.run_folder.checkpoint_layout import CheckpointLayout, plain_adapter_name
from training.run_folder.paths import CONFIG_FILE, checkpoint_dir

_FSDP_FOLDER = "pytorch_model_fsdp_0"
_DEEPSPEED_FILE = "latest"
_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors")
_MODEL_FILES = ("config.json", "generation_config.json", "model*.safetensors", "model.safetensors.index.json")


def gather(config: RunConfig, run_dir: Path, checkpoint: Path, target: Path, tell: Tell = silent) -> None:
    """Writes the adapter or model of a checkpoint to the folder `target`, atomically. Raises UserError if the checkpoint has no
    weights, or the base model cannot be loaded, and OSError if the disk is full."""
    with whole_folder(target) as partial:
        if whole := _in_one_piece(config, checkpoint):
            _copy(whole, partial, tell)
        else:
            _gather_shards(config, run_dir, checkpoint, partial, tell)
        load_tokenizer(config).save_pretrained(str(partial))
        if config.method.adapts:
            export_plain_lora(partial, run_dir)


def _in_one_piece(config: RunConfig, checkpoint: Path) -> list[Path]:
    """The files of an adapter or model that the checkpoint has as such; empty if its weights are in shards."""
    names = _ADAPTER_FILES if config.method.adapts else _MODEL_FILES
    files = [file for name in names for file in sorted(checkpoint.glob(name))]
    return files if any(file.suffix == ".safetensors" for file in files) else []


def _copy(files: list[Path], folder: Path, tell: Tell) -> None:
    folder.mkdir(parents=True)
    with growing(tell, "copying the weights", folder, sum(file.stat().st_size for file in files)):
        for file in files:
            shutil.copyfile(file, folder / file.name)


def _gather_shards(config: RunConfig, run_dir: Path, checkpoint: Path, partial: Path, tell: Tell) -> None:
    if config.task.traits.has_classes:
        raise UserError("task", config.task.value, "has a head whose classes no checkpoint names.", "Resume the run.")
    tell("reading the shards", 0, 0)
    weights, tokenizer = _weights(checkpoint), load_tokenizer(config)
    alone = config.model_copy(update={"strategy": Strategy.SINGLE, "num_processes": 1})
    precision = Precision.FP32 if config.precision is Precision.AUTO else config.precision
    tell("loading the base model", 0, 0)
    model = load_trainable(alone, precision, tokenizer, (), initial_dir(run_dir))
    _load(model, weights, checkpoint)
    tell("saving the weights", 0, 0)
    model.save_pretrained(str(partial))
    check_result(partial, model)


def _weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The whole tensors of a checkpoint of FSDP or DeepSpeed, by the names of the model's parameters."""
    if (checkpoint / _FSDP_FOLDER).is_dir():
        return dict(read_shards(checkpoint / _FSDP_FOLDER).get("model", {}))
    if (checkpoint / _DEEPSPEED_FILE).is_file():
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        return dict(get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), exclude_frozen_parameters=True))
    raise UserError("checkpoint", checkpoint.name, "has no weights, whole or in shards.", "Choose another checkpoint.")


@torch.no_grad()
def _load(model: Any, weights: dict[str, torch.Tensor], checkpoint: Path) -> None:
    """Puts the weights into the model. Raises UserError if a trained parameter is missing."""
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    layout = CheckpointLayout.read(checkpoint)
    names = {name: plain_adapter_name(name) for name in trained} | (layout.names_in_files if layout else {})
    found = {name: key for name in trained for key in (name, names[name]) if key in weights}
    check_missing(checkpoint.name, [name for name in trained if name not in found], len(trained))
    model.load_state_dict({name: weights[key] for name, key in found.items()}, strict=False)


@exit_status
def main(run_dir: Path, target: Path, step: int | None = None) -> None:
    """Writes a run's checkpoint, by default the newest, as a result."""
    config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    checkpoint = checkpoints.newest_checkpoint(run_dir)[0] if step is None else checkpoint_dir(run_dir, step)
    reason = checkpoints.fault(checkpoint) if checkpoint and checkpoint.is_dir() else "there is none"
    if reason or checkpoint is None:
        raise ValueError(f"No checkpoint can be gathered: {reason}.")
    gather(config, run_dir, checkpoint, target, printed)


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
