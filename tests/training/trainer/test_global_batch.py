"""The loss and gradient of a step are those of its global batch, however it is split into micro batches and ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_model
from trainer_process import Trained, start, train_here

from benchmarks.matrix.inputs import byte_tokenizer
from training.trainer.loss_terms import BATCHES, TOKENS, LossTerm, LossTerms, StepWeights

SPLITS = [(8, 1), (2, 4), (1, 8)]
# Answers of different lengths, so that a mean of means is not the mean; 11 rows, so that the last step has 3.
ANSWERS = [chr(97 + n) * (1 + 5 * (n % 4)) for n in range(11)]
SETTINGS: dict[str, Any] = {
    "max_steps": None,
    "epochs": 1,
    "precision": "fp32",
    "optimizer": "sgd",
    "method": "full",
    "answer_rows": 0,
    "eval_steps": 0,
    "eval_split": 0,
}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("global_batch")
    rows = [{"prompt": f"say {n}: ", "completion": answer} for n, answer in enumerate(ANSWERS)]
    pairs = [row | {"chosen": row["completion"], "rejected": "no"} for row in rows]
    write(home / "sft.jsonl", rows)
    write(home / "orpo.jsonl", [{key: row[key] for key in ("prompt", "chosen", "rejected")} for row in pairs])
    write(home / "classes.jsonl", [{"text": row["prompt"], "label": "ab"[n % 2]} for n, row in enumerate(rows)])
    make_model(home / "llama")
    make_t5(home / "t5")
    make_mixtral(home / "mixtral")
    return home


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_t5(folder: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    size = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4, "dropout_rate": 0.0}
    ends = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    T5ForConditionalGeneration(T5Config(**size, **ends)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def make_mixtral(folder: Path) -> None:
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    tokenizer = byte_tokenizer()
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    size["num_key_value_heads"] = 4
    router = {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 1.0}
    ends = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": None}
    MixtralForCausalLM(MixtralConfig(**size, **router, **ends)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


TASKS = {
    "seq2seq": ("t5", "sft.jsonl", {"task": "seq2seq"}),
    "classification": ("llama", "classes.jsonl", {"task": "classification"}),
    "sft, padded": ("llama", "sft.jsonl", {"packing": "none"}),
    "sft, flat": ("llama", "sft.jsonl", {"packing": "padding_free"}),
    "orpo": ("llama", "orpo.jsonl", {"task": "orpo"}),
    "reward": ("llama", "orpo.jsonl", {"task": "reward"}),
}


def curves(trained: Trained) -> list[float]:
    return [*trained.losses().values(), *trained.gradient_norms().values()]


@pytest.mark.train
@pytest.mark.parametrize("task", TASKS)
def test_the_loss_does_not_depend_on_micro_batches(tmp_path: Path, home: Path, task: str) -> None:
    model, data, settings = TASKS[task]
    result = []
    for micro, accumulation in SPLITS:
        split = {"micro_batch_size": micro, "gradient_accumulation_steps": accumulation}
        run = tmp_path / f"{micro}"
        result.append(curves(train_here(run, home / model, home / data, **SETTINGS | settings | split)))
    assert len(result[0]) == 4  # two steps, loss and gradient norm of each
    for other in result[1:]:
        assert other == pytest.approx(result[0], rel=1e-4)


@pytest.mark.train
@pytest.mark.parametrize("task", ["seq2seq", "classification"])
def test_the_loss_does_not_depend_on_two_ranks(tmp_path: Path, home: Path, task: str) -> None:
    model, data, settings = TASKS[task]
    whole = {"micro_batch_size": 8, "gradient_accumulation_steps": 1}
    shared = {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "strategy": "ddp", "num_processes": 2}
    alone = train_here(tmp_path / "one", home / model, home / data, **SETTINGS | settings | whole)
    two = start(tmp_path / "two", home / model, home / data, **SETTINGS | settings | shared)
    assert two.finish() == 0, two.log()
    assert curves(two) == pytest.approx(curves(alone), rel=1e-4)


@pytest.mark.train
def test_a_router_s_loss_is_a_mean_over_micro_batches(tmp_path: Path, home: Path) -> None:
    """Every micro batch has the same rows, so that the router's loss does not depend on their number."""
    write(tmp_path / "rows.jsonl", [{"prompt": "one", "completion": "two"}] * 8)
    result = []
    for micro, accumulation in SPLITS:
        split = {"micro_batch_size": micro, "gradient_accumulation_steps": accumulation}
        run = tmp_path / f"{micro}"
        result.append(curves(train_here(run, home / "mixtral", tmp_path / "rows.jsonl", **SETTINGS | split)))
    for other in result[1:]:
        assert other == pytest.approx(result[0], rel=1e-4)


@pytest.mark.train
def test_adalora_s_regularization_counts_once_and_not_in_the_evaluation(tmp_path: Path, home: Path) -> None:
    adalora = {"method": "adalora", "method_options": "tinit=0, tfinal=0, orth_reg_weight=50.0", "packing": "none"}
    held_out = {"validation_data": str(home / "sft.jsonl")}
    result, evaluated = [], []
    for micro, accumulation in ((8, 1), (2, 4)):
        split = {"micro_batch_size": micro, "gradient_accumulation_steps": accumulation}
        run = tmp_path / f"{micro}"
        trained = train_here(run, home / "llama", home / "sft.jsonl", **SETTINGS | adalora | held_out | split)
        result.append(list(trained.losses().values()))
        evaluated.append(trained.summary["eval_loss"])
    assert result[1] == pytest.approx(result[0], rel=1e-4)
    assert result[0][0] > 100  # includes the regularization
    assert evaluated == [pytest.approx(5.6, abs=0.5)] * 2  # near log(261): the tokens' loss alone


def step_weights() -> StepWeights:
    counts = torch.tensor([3.0, 1.0, 0.0, 4.0])
    return StepWeights({TOKENS: counts}, {TOKENS: counts.sum(), BATCHES: (counts > 0).sum()}, 4)


def loss_of_step(weights: StepWeights, micro_batches: list[tuple[LossTerm, ...]]) -> float:
    """The sum of the micro batches' losses, divided by their number as the Trainer does."""
    total = 0.0
    for terms in micro_batches:
        total += float(LossTerms(terms).total(weights.next))
        weights.advance()
    return total / len(micro_batches)


def test_the_means_of_micro_batches_add_up_to_the_global_mean() -> None:
    means = [2.0, 10.0, 99.0, 1.0]
    terms = [(LossTerm(torch.tensor(mean), TOKENS),) for mean in means]
    assert loss_of_step(step_weights(), terms) == pytest.approx((3 * 2 + 10 + 4) / 8)


def test_each_term_has_a_mean_of_its_own_and_an_empty_micro_batch_none() -> None:
    means, routed = [2.0, 10.0, 99.0, 1.0], [5.0, 8.0, 99.0, 2.0]
    terms = [
        (LossTerm(torch.tensor(mean), TOKENS), LossTerm(torch.tensor(added), BATCHES, 0.5))
        for mean, added in zip(means, routed, strict=True)
    ]
    assert loss_of_step(step_weights(), terms) == pytest.approx((3 * 2 + 10 + 4) / 8 + 0.5 * (5 + 8 + 2) / 3)


def test_a_model_that_divides_by_the_items_of_a_mean_micro_batch_returns_a_term_over_micro_batches() -> None:
    sums, added, weights = [6.0, 10.0, 99.0, 4.0], 0.5, step_weights()
    terms = [(LossTerm(total / weights.items_per_batch + added, BATCHES),) for total in sums]
    assert loss_of_step(weights, terms) == pytest.approx((6 + 10 + 4) / 8 + added)
