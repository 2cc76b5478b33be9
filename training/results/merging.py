"""Merges an adapter into its base model: `python -m training.results.merging RUN_FOLDER [TARGET]`, or at the end of a run.

The saved adapter is merged into the original weights in their own dtype, even if training quantized them.
"""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils import ModulesToSaveWrapper
from transformers import PreTrainedTokenizerBase
from transformers.utils import GENERATION_CONFIG_NAME

from training.config.choices import Method, Quantization
from training.config.run_config import RunConfig
from training.errors import UserError
from training.files import check_free_space, whole_folder
from training.model_info.folder import check_weights
from training.models.loading import load_model, load_tokenizer
from training.ranks.distributed import local_machine
from training.ranks.stopping import die_with_parent
from training.results.progress import Tell, exit_status, growing, printed, silent
from training.run_folder.events import Finished, decode
from training.run_folder.model_card import write_card
from training.run_folder.paths import CONFIG_FILE, EVENTS_FILE, MERGED_FOLDER, result_dir
from training.run_folder.record import Lineage, write_record

_SPARE_BYTES = 64 * 2**20


def merge(
    config: RunConfig,
    run_dir: Path,
    tokenizer: PreTrainedTokenizerBase,
    classes: Sequence[str] = (),
    tell: Tell = silent,
    target: Path | None = None,
) -> Path:
    """Writes the merged model as safetensors to `target`, by default in the run's folder, atomically. Returns its folder.

    Raises:
        UserError: the base model cannot be loaded, or adapters of this method cannot be merged.
        OSError: the disk has too little free space.
    """
    target, adapter = target or run_dir / MERGED_FOLDER, result_dir(run_dir, adapts=True)
    check_weights(adapter, "adapter", str(adapter))
    unquantized = config.model_copy(update={"method": Method.LORA, "quantization": Quantization.NONE})
    dtype: Any = "auto"
    tell("loading the base model", 0, 0)
    base = load_model(unquantized, dtype, len(tokenizer), classes)
    size = sum(weight.numel() * weight.element_size() for weight in base.parameters())
    check_free_space(run_dir, size + _SPARE_BYTES, "The merged model")
    tell("merging the adapter", 0, 0)
    model = PeftModel.from_pretrained(base, str(adapter))
    if not hasattr(model.base_model, "merge_and_unload"):
        fix = "Load the base model and add the adapter with PEFT."
        raise UserError("method", config.method.value, "has no weights that can be merged.", fix)
    _untie(model)
    merged = model.merge_and_unload(safe_merge=True)  # raises an error for NaN weights
    merged.config.use_cache = True
    with whole_folder(target) as partial:
        with growing(tell, "saving the merged model", partial, size):
            merged.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        if (adapter / GENERATION_CONFIG_NAME).is_file():  # ends answers where training does
            shutil.copy(adapter / GENERATION_CONFIG_NAME, partial)
        shutil.rmtree(target, ignore_errors=True)
    return target


def _untie(model: PeftModel) -> None:
    """Gives a head that shares the embeddings' weights a copy, if the adapter changes one of both: a merge would change both."""
    base = model.get_base_model()
    head, embeddings = base.get_output_embeddings(), base.get_input_embeddings()
    adapted = any(isinstance(module, (BaseTunerLayer, ModulesToSaveWrapper)) for module in (head, embeddings))
    if head is None or not adapted or not base.config.get_text_config().tie_word_embeddings:
        return
    while hasattr(head, "base_layer") or hasattr(head, "original_module"):
        head = getattr(head, "base_layer", None) or head.original_module
    head.weight = torch.nn.Parameter(head.weight.detach().clone(), requires_grad=False)
    for config in (base.config, base.config.get_text_config()):
        config.tie_word_embeddings = False


def last_summary(run_dir: Path) -> dict[str, Any]:
    """Returns the summary of a run's last `Finished` record, empty if there is none."""
    mark = f'"kind":"{Finished.kind}"'.encode()
    with (run_dir / EVENTS_FILE).open("rb") as stream:
        events = [event for line in stream if mark in line and isinstance(event := decode(line), Finished)]
    return events[-1].summary if events else {}


@exit_status
def main(run_dir: Path, target: Path | None = None) -> None:
    """Merges the adapter of a finished run."""
    config = RunConfig.model_validate_json((run_dir / CONFIG_FILE).read_text(encoding="utf-8"))
    summary = last_summary(run_dir)
    target = merge(config, run_dir, load_tokenizer(config), summary.get("classes", ()), printed, target)
    lineage, machine = Lineage.read(run_dir), local_machine()
    write_card(target, config, summary, lineage, machine)
    write_record(target, config, summary, lineage, machine)


if __name__ == "__main__":
    die_with_parent()
    sys.exit(main(*map(Path, sys.argv[1:])))
