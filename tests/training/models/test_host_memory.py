"""What the ranks of a machine take of its memory while they load a model, and that what they load is the same."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_data, make_model
from trainer_process import start, start_with_measured_loading, train_here

from training.chat.tokenizer import load
from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.forecast.forecast import PROCESS_BYTES, estimate
from training.forecast.gpus import CARDS
from training.model_info.families import shape_of
from training.models import placement
from training.models.loading import load_trainable

SHORT: dict[str, Any] = {"max_steps": 2, "micro_batch_size": 1, "eval_split": 0, "precision": "fp32"}
FSDP: dict[str, Any] = SHORT | {"num_processes": 2, "strategy": "fsdp"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("data") / "rows.jsonl")


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 253 MB in fp32, which its files have in bf16."""
    from transformers import AutoModelForCausalLM

    folder = make_model(tmp_path_factory.mktemp("large"), hidden_size=1024, layers=6)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.mark.train
@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        ({"method": "full"}, 1),
        # DoRA begins with the norms of the weights, and takes a copy of some for it.
        pytest.param({"method": "lora", "use_dora": True}, 2, marks=pytest.mark.nightly),
    ],
    ids=["full", "dora"],
)
def test_ranks_take_the_memory_that_the_forecast_says(
    tmp_path: Path, large: Path, data: Path, settings: dict[str, Any], copies: int
) -> None:
    run = start_with_measured_loading(tmp_path, large, data, **FSDP | settings)
    assert run.finish() == 0, run.log()
    ranks = [json.loads((tmp_path / f"loading-{rank}.json").read_text()) for rank in range(2)]
    taken = sum(rank["loaded"] - rank["before"] for rank in ranks)
    config = RunConfig.model_validate(FSDP | settings | {"model": "m", "data": "d"})
    shape = shape_of(json.loads((large / "config.json").read_text()))
    expected = estimate(config, shape, card=CARDS["h100"]).host_moments["loading"] - 2 * PROCESS_BYTES
    assert expected == copies * 4 * shape.parameters
    assert expected * 0.9 < taken < expected * (1.1 if copies == 1 else 1.2)


@pytest.mark.train
def test_a_model_with_buffers_in_its_files_is_read_by_every_rank(tmp_path: Path, data: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    folder = make_model(tmp_path / "model")
    sizes = {"vocab_size": 261, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "pad_token_id": 0, "eos_token_id": 1}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "first_k_dense_replace": 1}
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model("glm4_moe", **sizes, **heads, **experts))
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.arange(4.0))  # decides which experts a token goes through
    model.save_pretrained(folder)
    settings = {"method": "full", "optimizer": "sgd", "gradient_accumulation_steps": 2}
    for name in ("alone", "divided"):
        (tmp_path / name).mkdir()
    alone = train_here(tmp_path / "alone", folder, data, **SHORT | settings)
    divided = start(tmp_path / "divided", folder, data, **FSDP | settings | {"gradient_accumulation_steps": 1})
    assert divided.finish() == 0, divided.log()
    assert divided.losses() == pytest.approx(alone.losses(), rel=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the methods that PEFT calls
@pytest.mark.parametrize(
    ("settings", "onto_gpu"),
    [
        ({"method": "full"}, True),
        ({"method": "full", "strategy": "ddp", "num_processes": 2}, True),
        ({"method": "lora", "strategy": "zero2", "num_processes": 2}, True),
        ({"method": "lora", "lora_init": "pissa"}, False),
        ({"method": "full", "strategy": "zero3", "num_processes": 2}, False),
    ],
)
def test_a_model_that_trains_whole_is_read_onto_its_gpu(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, Any], onto_gpu: bool
) -> None:
    from transformers import PreTrainedModel

    folder = make_model(tmp_path)
    config = RunConfig.model_validate({"model": str(folder), "data": "d"} | settings)
    expected = load_trainable(config, Precision.FP32, load(str(folder), None, None)).state_dict()
    original, maps = PreTrainedModel.from_pretrained.__func__, []  # type: ignore[attr-defined]

    def note(cls: Any, *arguments: Any, device_map: Any = None, **named: Any) -> Any:
        maps.append(device_map)
        return original(cls, *arguments, device_map=device_map and {"": "cpu"}, **named)

    monkeypatch.setattr(placement, "own_gpu", lambda: 1)
    monkeypatch.setattr(PreTrainedModel, "from_pretrained", classmethod(note))
    loaded = load_trainable(config, Precision.FP32, load(str(folder), None, None)).state_dict()
    assert maps == [{"": 1} if onto_gpu else None]
    torch.testing.assert_close(
        {name: loaded[name] for name in expected if "lora" not in name},
        {name: expected[name] for name in expected if "lora" not in name},
    )
