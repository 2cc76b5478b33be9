"""An adapter merged into its base model: `python -m training.merging RUN_FOLDER`, or at the end of a run.

The adapter that was saved goes onto the original weights in their own format, also where training held them quantised.
"""

import errno
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peft import PeftModel
from transformers import PreTrainedTokenizerBase

from training.card import write_card
from training.config import Method, Quantization, RunConfig
from training.distributed import local_machine
from training.events import Finished, decode
from training.failure import UserError
from training.lineage import Lineage
from training.model import load_model, load_tokenizer
from training.report import EVENTS_FILE

MERGED = "merged"
_SPARE_BYTES = 64 * 2**20


def merge(config: RunConfig, run_dir: Path, tokenizer: PreTrainedTokenizerBase, classes: Sequence[str] = ()) -> Path:
    """Writes the merged model as safetensors; its folder appears whole or not at all.

    Raises:
        UserError: the base model is gone, or the adapter is of a kind that cannot be merged.
        OSError: there is no room on the disk for it.
    """
    target, adapter = run_dir / MERGED, run_dir / "adapter"
    whole = config.model_copy(update={"method": Method.LORA, "quantization": Quantization.NONE})
    dtype: Any = "auto"
    base = load_model(whole, dtype, len(tokenizer), classes)
    _make_sure_of_room(run_dir, sum(one.numel() * one.element_size() for one in base.parameters()))
    model = PeftModel.from_pretrained(base, str(adapter))
    if not hasattr(model.base_model, "merge_and_unload"):
        fix = "Load the base model and put the adapter on it with PEFT."
        raise UserError("method", config.method.value, "trains no part that could be merged into weights.", fix)
    merged = model.merge_and_unload(safe_merge=True)  # refuses weights that are no numbers
    merged.config.use_cache = True
    partial = target.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        merged.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        shutil.rmtree(target, ignore_errors=True)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def _make_sure_of_room(folder: Path, model_bytes: int) -> None:
    needed, free = model_bytes + _SPARE_BYTES, shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(errno.ENOSPC, f"The merged model takes {needed:,} bytes, and the disk has {free:,} free")


def last_summary(run_dir: Path) -> dict[str, Any]:
    """The summary with which a run finished; the last where it ended several times."""
    mark = f'"kind":"{Finished.kind}"'.encode()
    with (run_dir / EVENTS_FILE).open("rb") as stream:
        told = [event for line in stream if mark in line and isinstance(event := decode(line), Finished)]
    return told[-1].summary if told else {}


def main(run_dir: Path) -> int:
    """Merges the adapter of a run that has finished; what went wrong is said on standard error."""
    config = RunConfig.model_validate_json((run_dir / "config.json").read_text(encoding="utf-8"))
    summary = last_summary(run_dir)
    try:
        target = merge(config, run_dir, load_tokenizer(config), summary.get("classes", ()))
        write_card(target, config, summary, Lineage.read(run_dir), local_machine())
    except (UserError, OSError, ValueError) as error:
        print(error, getattr(error, "fix", ""), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
