"""Gathers the weights of a checkpoint from its shards: `python -m training.results.gathering RUN_FOLDER TARGET [STEP]`.

It writes what the run itself would have saved at that step, an adapter or a model, and needs one process and the base model.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import torch

from training.checkpointing.contents import check_missing
from training.checkpointing.full_state import read_shards
from training.checkpointing.weights import check_result
from training.config.choices import Precision, Strategy, Task
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import load_tokenizer, load_trainable
from training.models.lora_init import export_plain_lora, initial_dir
from training.run_folder import checkpoints
from training.run_folder.checkpoint_layout import Layout, plain_adapter_name
from training.run_folder.paths import CONFIG_FILE, checkpoint_dir

_FSDP_FOLDER = "pytorch_model_fsdp_0"
_DEEPSPEED_FILE = "latest"


def gather(config: RunConfig, run_dir: Path, checkpoint: Path, target: Path) -> None:
    """Writes the adapter or model of a checkpoint to the folder `target`, atomically.

    Raises:
        UserError: the checkpoint has no shards, or the base model cannot be loaded.
        OSError: the disk is full.
    """
    if config.task is Task.CLASSIFICATION:
        raise UserError("task", config.task.value, "has a head whose classes no checkpoint names.", "Resume the run.")
    weights, tokenizer = _weights(checkpoint), load_tokenizer(config)
    alone = config.model_copy(update={"strategy": Strategy.SINGLE, "num_processes": 1})
    precision = Precision.FP32 if config.precision is Precision.AUTO else config.precision
    model = load_trainable(alone, precision, tokenizer, (), initial_dir(run_dir))
    _load(model, weights, checkpoint)
    partial = target.with_name(f"{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        model.save_pretrained(str(partial))
        check_result(partial, model)
        tokenizer.save_pretrained(str(partial))
        if config.method.adapts:
            export_plain_lora(partial, run_dir)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _weights(checkpoint: Path) -> dict[str, torch.Tensor]:
    """The whole tensors of a checkpoint of FSDP or DeepSpeed, by the names of the model's parameters."""
    if (checkpoint / _FSDP_FOLDER).is_dir():
        return dict(read_shards(checkpoint / _FSDP_FOLDER).get("model", {}))
    if (checkpoint / _DEEPSPEED_FILE).is_file():
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

        return dict(get_fp32_state_dict_from_zero_checkpoint(str(checkpoint), exclude_frozen_parameters=True))
    fix = "Its weights are in one piece: use the checkpoint's folder as an adapter or model."
    raise UserError("checkpoint", checkpoint.name, "has no shards of FSDP or DeepSpeed.", fix)


@torch.no_grad()
def _load(model: Any, weights: dict[str, torch.Tensor], checkpoint: Path) -> None:
    """Puts the weights into the model.

    Raises:
        UserError: a trained parameter is missing.
    """
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    layout = Layout.read(checkpoint)
    names = {name: plain_adapter_name(name) for name in trained} | (layout.names_in_files if layout else {})
    found = {name: key for name in trained for key in (name, names[name]) if key in weights}
    check_missing(checkpoint.name, [name for name in trained if name not in found], len(trained))
    model.load_state_dict({name: weights[key] for name, key in found.items()}, strict=False)


def main(run_dir: Path, target: Path, step: int | None = None) -> int:
    """Gathers a run's checkpoint, by default the newest; prints errors to standard error. Returns the exit status."""
    config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    checkpoint = checkpoints.newest_checkpoint(run_dir)[0] if step is None else checkpoint_dir(run_dir, step)
    reason = checkpoints.fault(checkpoint) if checkpoint and checkpoint.is_dir() else "there is none"
    if reason or checkpoint is None:
        print(f"No checkpoint can be gathered: {reason}.", file=sys.stderr)
        return 1
    try:
        gather(config, run_dir, checkpoint, target)
    except (UserError, OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    print(checkpoint.name)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:])))
