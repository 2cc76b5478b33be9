"""A multimodal model trains on text; modules that process no text are frozen, as are layers before the last ones."""

from pathlib import Path

import pytest
import torch
from tiny import make_data
from trainer_process import start

from benchmarks.matrix.inputs import byte_tokenizer
from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.models.freezing import modules_without_text, train_last_layers
from training.models.loading import load_tokenizer, load_trainable

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
TOWERS = ["model.vision_tower", "model.multi_modal_projector"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import Gemma3Config, Gemma3ForConditionalGeneration

    folder, tokenizer = tmp_path_factory.mktemp("gemma"), byte_tokenizer()
    text = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": 16,
    }
    ends = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    vision = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = Gemma3Config(
        text_config=text | ends | {"num_key_value_heads": 4, "sliding_window": 64},
        vision_config=vision | {"image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
    )
    Gemma3ForConditionalGeneration(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("method", ["full", "lora", "vera"])
def test_only_modules_that_process_text_are_trained(folder: Path, method: str) -> None:
    settings = {"model": str(folder), "data": "d", "method": method}
    config = RunConfig.model_validate(settings | ({} if method == "full" else {"target_modules": "q_proj, v_proj"}))
    model = load_trainable(config, Precision.FP32, load_tokenizer(config))
    trains = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trains
    assert not [name for name in trains if "vision_tower" in name or "projector" in name]
    if method == "lora":
        assert not [name for name, _ in model.named_parameters() if "vision_tower" in name and "lora" in name]


def test_a_text_model_has_no_modules_without_text(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    assert modules_without_text(AutoModelForCausalLM.from_pretrained(folder)) == TOWERS
    small = LlamaConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, vocab_size=32)
    assert modules_without_text(LlamaForCausalLM(small)) == []


@pytest.mark.train
def test_two_ranks_train_it_on_text(folder: Path, tmp_path: Path) -> None:
    data = make_data(tmp_path / "data.jsonl")
    settings = {"strategy": "ddp", "num_processes": 2, "method": "full", "max_steps": 3, "eval_steps": 0}
    trained = start(tmp_path / "run", folder, data, **settings)
    assert trained.finish() == 0, trained.log()
    assert sorted(trained.losses()) == [1, 2, 3]


def test_the_last_layers_of_a_model_with_fewer_layers_than_parts_of_a_layer() -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    with torch.device("meta"):
        model = T5ForConditionalGeneration(T5Config(d_model=16, d_ff=32, num_layers=2, vocab_size=64))
    train_last_layers(model, 1, [])
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert trained == {name for name, _ in model.named_parameters() if name.startswith("decoder.block.1.")}


def test_with_checkpointing_no_frozen_layer_computes_a_gradient() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 3}
    model = LlamaForCausalLM(LlamaConfig(**sizes, vocab_size=64))
    train_last_layers(model, 1, [])
    model.gradient_checkpointing_enable({"use_reentrant": False})
    outputs: list[bool] = []
    for layer in model.model.layers:
        layer.register_forward_hook(lambda _, __, output: outputs.append(output.requires_grad))
    tokens = torch.arange(8)[None]
    model.train()(input_ids=tokens, labels=tokens).loss.backward()
    assert outputs[:3] == [False, False, True]
    assert all(weight.grad is not None for weight in model.model.layers[2].parameters())
