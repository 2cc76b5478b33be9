"""A run continues the weights of an adapter, and refuses one that does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import get_peft_model_state_dict
from safetensors.torch import load_file
from trained import trained

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.loading import load_tokenizer, load_trainable

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")]


def config(run_dir: Path, **settings: object) -> RunConfig:
    """The settings of a finished run, which continues its own adapter."""
    stored = RunConfig.model_validate_json((run_dir / "config.json").read_text())
    return RunConfig.model_validate(
        {**stored.model_dump(mode="json"), "init_adapter": str(run_dir / "adapter"), **settings}
    )


def test_the_adapter_begins_with_the_weights_of_another_one() -> None:
    run_dir = trained("sft_lora").run_dir
    settings = config(run_dir)
    model = load_trainable(settings, Precision.FP32, load_tokenizer(settings))
    saved = load_file(run_dir / "adapter" / "adapter_model.safetensors")
    loaded = get_peft_model_state_dict(model)
    assert loaded.keys() == saved.keys() and any("lora_B" in name for name in saved)
    assert all(torch.equal(loaded[name].float(), saved[name].float()) for name in saved)
    assert any(torch.any(saved[name]) for name in saved if "lora_B" in name)


def test_an_adapter_of_another_rank_or_none_is_refused(tmp_path: Path) -> None:
    run_dir = trained("sft_lora").run_dir
    for settings, words in (
        ({"lora_r": 3}, "has r 16, and the run"),
        ({"init_adapter": str(tmp_path)}, "cannot be read"),
    ):
        given = config(run_dir, **settings)
        with pytest.raises(UserError, match=words):
            load_trainable(given, Precision.FP32, load_tokenizer(given))


@pytest.mark.parametrize(
    ("saved", "continued"),
    [
        ({"method": "lokr", "method_options": "r=4, alpha=32"}, {"method_options": "r=4"}),
        ({"method_options": "alpha_pattern={q_proj: 32}"}, {"method_options": None}),
        (
            {"method": "fourierft", "method_options": "n_frequency=50, scaling=3000"},
            {"method_options": "n_frequency=50"},
        ),
    ],
)
def test_an_adapter_of_another_scale_is_refused(
    tmp_path: Path, saved: dict[str, Any], continued: dict[str, Any]
) -> None:
    base = config(trained("sft_lora").run_dir, target_modules="q_proj", init_adapter=None, **saved)
    tokenizer = load_tokenizer(base)
    load_trainable(base, Precision.FP32, tokenizer).save_pretrained(tmp_path)
    same = base.model_copy(update={"init_adapter": str(tmp_path)})
    load_trainable(same, Precision.FP32, tokenizer)
    with pytest.raises(UserError, match="and the run's adapter has other values"):
        load_trainable(same.model_copy(update=continued), Precision.FP32, tokenizer)
