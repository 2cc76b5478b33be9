"""Every offered PEFT method learns, and its saved adapter computes the same; the catalogue matches PEFT."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from tiny import make_model

from tools.references import peft_catalogue
from training.config.choices import Method, Precision, Quantization
from training.config.fields import parse
from training.config.name_values import OptionError, written
from training.config.name_values import parse as read
from training.config.peft_methods import CATALOGUE, REQUIRED, methods, options
from training.config.run_config import RunConfig
from training.errors import UserError
from training.models.adapters import add_adapter
from training.models.loading import load_model, load_tokenizer, load_trainable, parameter_counts
from training.rules.methods import supports

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")

# Sizes that divide the small model's, and tokens in its rows.
SMALL: dict[str, dict[str, Any]] = {
    "c3a": {"block_size": 32},
    "vblora": {"vector_length": 32},
    "trainable_tokens": {"token_indices": [70, 71, 72]},
}
TOKENS = torch.arange(60, 84).reshape(2, 12)


def config(model: Path | str = "m", **values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": str(model), "data": "d"} | values)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def train(model: Any, steps: int = 2) -> list[float]:
    """A few steps on one batch; the loss before each."""
    optimizer = torch.optim.AdamW([parameter for parameter in model.parameters() if parameter.requires_grad], lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(loss))
    return losses


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model.eval()(input_ids=TOKENS).logits
    return result


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_learns_and_its_saved_adapter_computes_the_same(tmp_path: Path, folder: Path, method: str) -> None:
    options = REQUIRED[method] | SMALL.get(method, {})
    chosen = config(folder, method=method, method_options=options or None)
    model = add_adapter(load_model(chosen, torch.float32), chosen).eval()  # without dropout
    trained, total = parameter_counts(model)
    assert 0 < trained < total
    losses = train(model, 3)
    assert losses[2] < losses[0]
    model.save_pretrained(tmp_path)
    again = PeftModel.from_pretrained(load_model(chosen, torch.float32), str(tmp_path))
    assert torch.allclose(logits(model), logits(again), atol=1e-5)
    with again.disable_adapter():
        assert torch.allclose(logits(again), logits(load_model(chosen, torch.float32)), atol=1e-5)


@pytest.mark.parametrize(
    ("method", "held"),
    [("ia3", "4bit"), ("oft", "4bit"), ("prompt_tuning", "4bit"), ("c3a", "8bit"), ("gralora", "8bit"), ("loha", "8bit")],
)  # fmt: skip
def test_methods_learn_with_quantized_base_weights(folder: Path, method: str, held: str) -> None:
    pytest.importorskip("bitsandbytes")
    assert supports(Method(method), Quantization(held))
    options = REQUIRED[method] | SMALL.get(method, {})
    chosen = config(folder, method=method, quantization=held, method_options=options or None)
    losses = train(load_trainable(chosen, Precision.FP32, load_tokenizer(chosen)).train(), 3)
    assert losses[2] < losses[0]


@pytest.mark.parametrize("method", sorted(methods()))
def test_every_method_trains_the_same_parameters_on_16_bit_weights(folder: Path, method: str) -> None:
    options = REQUIRED[method] | SMALL.get(method, {})
    chosen = config(folder, method=method, method_options=options or None)
    models = [add_adapter(load_model(chosen, dtype), chosen) for dtype in (torch.float32, torch.bfloat16)]
    exact, rounded = ({name for name, weight in one.named_parameters() if weight.requires_grad} for one in models)
    assert exact == rounded


@pytest.mark.parametrize("strategy", ["zero2", "fsdp"])
@pytest.mark.parametrize("method", ["delora", "pvera", "tinylora", "unilora", "vera"])
def test_fixed_tensors_have_the_format_of_ranks_that_compute_without_autocast(
    folder: Path, method: str, strategy: str
) -> None:
    wanted = config(folder, method=method, strategy=strategy, num_processes=2, precision="bf16")
    model: Any = load_trainable(wanted, Precision.BF16, load_tokenizer(wanted))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)  # as the ranks' engine does
    assert all(value < float("inf") for value in train(model))


def test_catalogue_and_page_are_up_to_date_with_peft() -> None:
    fix = "PEFT's methods have changed: run `python -m tools.references.peft_catalogue`"
    assert CATALOGUE.read_text(encoding="utf-8") == peft_catalogue.render(), fix
    assert peft_catalogue.DOCUMENT.read_text(encoding="utf-8") == peft_catalogue.document(), fix


def test_every_peft_method_is_offered_or_excluded_with_a_reason() -> None:
    offered = {method.value for method in Method} - {"qlora", "full"}
    assert offered == set(methods())
    assert offered | set(peft_catalogue.LEFT_OUT) == set(peft_catalogue.classes())
    assert not offered & set(peft_catalogue.LEFT_OUT)


@pytest.mark.parametrize(
    ("method", "text", "values"),
    [
        ("vera", "r=128, d_initial=2e-1", {"r": 128, "d_initial": 0.2}),
        ("lora", "layers_to_transform=[0, 1], rank_pattern={q: 4}", {"layers_to_transform": [0, 1], "rank_pattern": {"q": 4}}),
        ("qlora", "bias=lora_only", {"bias": "lora_only"}),
        ("lokr", "init_weights=lycoris", {"init_weights": "lycoris"}),
        ("oft", " ", {}),
    ],
)  # fmt: skip
def test_options_are_text_of_names_and_values(method: str, text: str, values: dict[str, Any]) -> None:
    assert options(method, text) == values
    assert read(written(values)) == values


@pytest.mark.parametrize(
    ("method", "text", "words"),
    [
        ("vera", "d_initail=0.2", "d_initail is not an option of vera. Did you mean d_initial?"),
        ("vera", "r=many", "r cannot be many. It must be an integer."),
        ("vera", "r=true", "It must be an integer."),
        ("lokr", "init_weights=zeros", "It must be true or false or lycoris."),
        ("lora", "layers_to_transform=[a]", "a list of integers"),
        ("vera", "128", "must be name=value"),
        ("vera", "r: [", "must be name=value"),
        ("vera", "bias=none, s", "must be name=value"),
        ("full", "r=8", "has no options"),
    ],
)
def test_an_invalid_option_is_refused_with_the_valid_ones(method: str, text: str, words: str) -> None:
    with pytest.raises(OptionError) as caught:
        options(method, text)
    assert words in str(caught.value)


def test_a_file_may_give_the_options_as_a_mapping() -> None:
    created = parse({"model": "m", "data": "d", "method": "vera", "method_options": {"r": 128, "bias": "none"}})
    assert created.method_options == "r=128, bias=none"
    assert json.loads(created.model_dump_json())["method_options"] == "r=128, bias=none"


def test_options_that_peft_refuses_are_a_clear_error(folder: Path) -> None:
    chosen = config(folder, method="c3a", method_options="block_size=48")
    with pytest.raises(UserError) as caught:
        add_adapter(load_model(chosen, torch.float32), chosen)
    assert caught.value.problem.field == "method_options"
    assert "48" in str(caught.value)


@pytest.mark.parametrize(("setting", "value", "fix"), [("lora_dropout", 0.05, "to 0"), ("use_dora", True, "to false")])
def test_what_fused_experts_refuse_is_an_error_of_its_setting(
    tmp_path: Path, setting: str, value: object, fix: str
) -> None:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"hidden_size": 32, "intermediate_size": 32, "moe_intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_experts": 4, "vocab_size": 64}
    Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes, **heads)).save_pretrained(tmp_path / "model")
    settings = {"model": str(tmp_path / "model"), "data": "d", "method": "lora", "target_modules": "all-linear"}
    chosen = RunConfig.model_validate(settings | {"lora_dropout": 0.0, setting: value})
    with pytest.raises(UserError, match=f"Set it {fix}") as caught:
        add_adapter(load_model(chosen, torch.float32), chosen)
    assert caught.value.problem.field == setting


@pytest.mark.parametrize(
    "settings", [{"method": "lora", "modules_to_save": "lm_head,embed_tokens"}, {"method": "ln_tuning"}]
)
def test_whole_modules_train_in_fp32_between_bf16_weights_without_autocast(
    folder: Path, settings: dict[str, Any]
) -> None:
    chosen = config(folder, weights_precision="bf16", precision="fp32", **settings)
    model = load_trainable(chosen, Precision.FP32, load_tokenizer(chosen))
    assert {weight.dtype for weight in model.parameters() if weight.requires_grad} == {torch.float32}
    assert torch.bfloat16 in {weight.dtype for weight in model.parameters()}
    losses = train(model, 3)
    assert losses[-1] < losses[0]
