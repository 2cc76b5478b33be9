"""What a run leaves behind: the adapter or model as safetensors, with a card that says where it comes from."""

import shutil
from importlib.metadata import version
from pathlib import Path
from typing import Any

from training.config import Method, RunConfig
from training.config_file import to_yaml
from training.lora_init import make_plain
from training.reporting import Reporting

_PACKAGES = ("torch", "transformers", "peft", "accelerate", "deepspeed")


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
        (partial / "training_args.bin").unlink(missing_ok=True)  # a pickle that nothing here needs
        make_plain(partial, run_dir)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    trainer.accelerator.wait_for_everyone()
    return target


def weights_bytes(folder: Path) -> int:
    """The size of a folder's safetensors files."""
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def write_card(folder: Path, config: RunConfig, summary: dict[str, Any]) -> None:
    """A README.md with the run's facts, in the form that model hubs read."""
    strategy, answers = summary["strategy"], summary["answers"]
    kind = "adapter" if config.method.adapts else "model"
    rows = [
        ("Base model", f"`{config.model}`"),
        ("Method", config.method.value),
        ("Steps", f"{summary['steps']:,}"),
        ("Final training loss", _loss(summary["final_loss"])),
        ("Evaluation loss", _loss(summary["eval_loss"])),
        ("Trainable parameters", f"{summary['trainable_parameters']:,} of {summary['total_parameters']:,}"),
        ("Ran as", f"{strategy['engine']}, {strategy['world_size']} process(es), {strategy['precision']}"),
    ]
    if answers:
        rows.append(
            (
                "Exact match on held-out rows",
                f"{answers['exact_match_before']:.1%} before, {answers['exact_match_after']:.1%} after",
            )
        )
    rows += [(f"{name}", version(name)) for name in _PACKAGES]
    library = "peft" if config.method.adapts else "transformers"
    text = f"---\nbase_model: {config.model}\nlibrary_name: {library}\n---\n\n# {config.title}\n\n"
    text += f"This {kind} was fine-tuned with Lathe.\n\n"
    text += "| | |\n| --- | --- |\n" + "".join(f"| {name} | {value} |\n" for name, value in rows)
    text += f"\n## Configuration\n\n```yaml\n{to_yaml(config)}```\n"
    (folder / "README.md").write_text(text, encoding="utf-8")


def _loss(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
