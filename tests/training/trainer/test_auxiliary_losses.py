"""A router's losses have a weight of their own: their mean over micro batches is added to the mean over tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import cross_entropy
from trainer_process import train_here

from benchmarks.matrix.inputs import byte_tokenizer
from training.batches.layout import evaluating
from training.trainer.answering import greedy

ANSWERS = ["abcdefg", "bcdefghijklmnop", "ijklmno", "lmnopqrstuvwxyz"]  # not padded with their end token
WEIGHTS = [0.25, 3.0, 1.0, 0.5]
COEFFICIENT = 0.5
SETTINGS: dict[str, Any] = {
    "max_steps": 1, "precision": "fp32", "optimizer": "sgd", "method": "full", "eval_steps": 0, "eval_split": 0,
    "micro_batch_size": 1, "gradient_accumulation_steps": 4, "learning_rate": 1e-3,
}  # fmt: skip


def make(folder: Path, family: str) -> Any:
    """A mixture of experts without dropout and noise, so that a plain forward pass computes the same."""
    import transformers as library

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    ids = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1}
    match family:
        case "mixtral":
            config: Any = library.MixtralConfig(
                hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=4,
                num_local_experts=4, router_aux_loss_coef=COEFFICIENT, output_router_logits=True, bos_token_id=None, **ids,
            )  # fmt: skip
            model: Any = library.MixtralForCausalLM(config)
        case "nllb":
            sizes = dict.fromkeys(("encoder_layers", "decoder_layers", "encoder_sparse_step", "decoder_sparse_step"), 1)
            sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64)
            none = ("dropout", "attention_dropout", "encoder_layerdrop", "decoder_layerdrop", "moe_token_dropout")
            config = library.NllbMoeConfig(
                d_model=32, **sizes, **dict.fromkeys(none, 0.0), encoder_attention_heads=4, decoder_attention_heads=4,
                num_experts=4, decoder_start_token_id=0, router_aux_loss_coef=COEFFICIENT, output_router_logits=True, **ids,
            )  # fmt: skip
            model = library.NllbMoeForConditionalGeneration(config)
        case "jetmoe":
            config = library.JetMoeConfig(
                hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_key_value_heads=4, kv_channels=8,
                num_local_experts=4, aux_loss_coef=COEFFICIENT, output_router_logits=True, bos_token_id=None, **ids,
            )  # fmt: skip
            model = library.JetMoeForCausalLM(config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model.train(), tokenizer


def of_row(family: str, model: Any, tokenizer: Any, row: dict[str, Any]) -> tuple[torch.Tensor, int, Any]:
    """The sum of the losses of a row's answer, its tokens, and what its router adds."""
    prompt, answer = (tokenizer(row[name], add_special_tokens=False).input_ids for name in ("prompt", "completion"))
    answer = [*answer, 1]
    if family == "nllb":
        outputs = model(torch.tensor([prompt]), torch.ones(1, len(prompt)), labels=torch.tensor([answer]))
        logits, added = outputs.logits[0], outputs.encoder_aux_loss + outputs.decoder_aux_loss
    else:
        outputs = model(input_ids=torch.tensor([prompt + answer]))
        logits, added = outputs.logits[0, len(prompt) - 1 : -1], outputs.aux_loss
    return cross_entropy(logits, torch.tensor(answer), reduction="sum"), len(answer), COEFFICIENT * added


@pytest.mark.train
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("mixtral", {"weight_field": "weight"}),
        ("mixtral", {"weight_field": "weight", "chunked_loss": "on"}),
        ("nllb", {"task": "seq2seq"}),
        *(
            pytest.param(family, settings, marks=pytest.mark.nightly)
            for family, settings in (
                ("mixtral", {"weight_field": "weight", "packing": "none"}),
                ("mixtral", {}),
                ("nllb", {"task": "seq2seq", "chunked_loss": "auto"}),
                ("jetmoe", {"weight_field": "weight"}),
                ("jetmoe", {"chunked_loss": "on"}),
            )
        ),
    ],
)
def test_a_step_adds_the_mean_of_the_router_s_losses(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    weights = WEIGHTS if "weight_field" in settings else [1.0] * len(ANSWERS)
    rows = [
        {"prompt": f"say it {number}", "completion": answer, "weight": weight}
        for number, (answer, weight) in enumerate(zip(ANSWERS, weights, strict=True))
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, tokenizer = make(tmp_path / "model", family)
    run = train_here(tmp_path / "run", tmp_path / "model", tmp_path / "rows.jsonl", **SETTINGS | settings)

    sums, counts, added = zip(*(of_row(family, model, tokenizer, row) for row in rows), strict=True)
    items = sum(weight * count for weight, count in zip(weights, counts, strict=True))
    loss: Any = sum(w * s for w, s in zip(weights, sums, strict=True)) / items + sum(added) / len(added)
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
    assert run.losses()[1] == pytest.approx(loss.item(), rel=1e-6)
    assert run.gradient_norms()[1] == pytest.approx(norm.item(), rel=1e-4)


def test_a_forward_pass_in_an_evaluation_leaves_the_capacity_of_routers(tmp_path: Path) -> None:
    model, _ = make(tmp_path / "model", "nllb")
    capacities = {module: module.expert_capacity for module in model.modules() if hasattr(module, "expert_capacity")}
    batch = {"input_ids": torch.arange(2, 10)[None], "labels": torch.arange(2, 10)[None]}
    with evaluating(model):
        model(**batch)
        assert all(module.expert_capacity != capacity for module, capacity in capacities.items())
    assert capacities and all(module.expert_capacity == capacity for module, capacity in capacities.items())


def test_a_model_whose_config_asks_for_router_logits_answers_as_without_them(tmp_path: Path) -> None:
    model, _ = make(tmp_path / "model", "mixtral")
    assert model.config.output_router_logits
    prompts, expected = [[5, 6, 7], [8, 9]], []
    for prompt in prompts:
        tokens = list(prompt)
        with evaluating(model):
            for _ in range(4):
                tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
        expected.append(tokens[len(prompt) :])
    with evaluating(model):
        assert greedy(model, prompts, 4, [], 0, torch.device("cpu")) == expected
