"""Answers of the saved result, loaded as training loads it: the reference where the trained model was sharded."""

import gc
from pathlib import Path

import torch
from peft import PeftModel

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.models.loading import DTYPES, load_model, load_tokenizer, model_class
from training.results.parity.reference import SAVED_RESULT, Reference, answered
from training.run_folder.paths import result_dir


def answer_by_saved_result(config: RunConfig, run_dir: Path, reference: Reference) -> None:
    """Lets the saved result answer, loaded as training loads it, where the trained model was sharded."""
    tokenizer, result = load_tokenizer(config), result_dir(run_dir, adapts=config.method.adapts)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if config.method.adapts:
        base = load_model(config, _dtype(config), len(tokenizer))
        model = PeftModel.from_pretrained(base, str(result)).to(device).eval()
    else:
        model = model_class(config.task).from_pretrained(str(result), dtype="auto").to(device).eval()
    answered(reference, model, device, None, SAVED_RESULT)
    del model
    gc.collect()


def _dtype(config: RunConfig) -> torch.dtype:
    if config.precision in DTYPES:
        return DTYPES[Precision(config.precision)]
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32
