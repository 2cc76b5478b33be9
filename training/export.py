"""What a run leaves behind: the adapter or model as safetensors."""

import shutil
from pathlib import Path

from training.config import Method, RunConfig
from training.lora_init import make_plain
from training.reporting import Reporting


def result_dir(run_dir: Path, method: Method) -> Path:
    """Where the trained weights go."""
    return run_dir / ("model" if method is Method.FULL else "adapter")


def save_result(trainer: Reporting, config: RunConfig, run_dir: Path) -> Path:
    """Saves the trained weights and the tokenizer; the folder appears whole or not at all. Every rank calls it.

    Raises:
        OSError: the disk is full.
    """
    target = result_dir(run_dir, config.method)
    partial = target.with_suffix(".partial")
    if trainer.is_fsdp_enabled:  # checkpoints are saved in parts, the result whole
        trainer.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
    trainer.save_model(str(partial))  # gathers the shards of ZeRO-3 and FSDP; only rank 0 writes
    trainer.accelerator.wait_for_everyone()
    if trainer.is_world_process_zero():
        shutil.rmtree(partial / "ref", ignore_errors=True)  # the adapter that trl compares with, where it keeps one
        (partial / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing here needs
        make_plain(partial, run_dir)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    trainer.accelerator.wait_for_everyone()
    return target


def weights_bytes(folder: Path) -> int:
    """The size of a folder's safetensors files."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))
