"""A loss in chunks of tokens is the model's own: same losses, gradients and evaluations, and no logits of all tokens in memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import make_data, make_model
from torch.nn.functional import cross_entropy, linear
from trained import resumable, trained
from trainer_process import Trained, train_here

from training.errors import UserError
from training.models.token_cross_entropy import LogitTransform, token_cross_entropy
from training.reports.live_memory import LiveStorages
from training.run_folder.events import Note

pytestmark = pytest.mark.slow
SETTINGS: dict[str, Any] = {
    "method": "full",
    "max_steps": 3,
    "learning_rate": 1e-3,
    "optimizer": "sgd",
    "eval_steps": 3,
}
VOCABULARY, WIDTH, TOKENS = 1000, 16, 150


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("transform", [LogitTransform(), LogitTransform(0.25), LogitTransform(3.0, softcap=2.0)])
@pytest.mark.parametrize("chunk", [64, 10_000])
def test_loss_and_gradients_are_those_of_all_logits(chunk: int, transform: LogitTransform, weighted: bool) -> None:
    torch.manual_seed(0)
    labels, weights = torch.randint(VOCABULARY, (TOKENS,)), torch.rand(TOKENS) if weighted else None
    inputs = [torch.randn(size) for size in ((TOKENS, WIDTH), (VOCABULARY, WIDTH), (VOCABULARY,))]
    whole, chunked = ([tensor.clone().requires_grad_() for tensor in inputs] for _ in range(2))
    logits = linear(*whole) * transform.scale
    if transform.softcap:
        logits = transform.softcap * torch.tanh(logits / transform.softcap)
    expected = cross_entropy(logits, labels, reduction="none")
    total = (expected * (1 if weights is None else weights)).sum()
    (total / 7).backward()
    mine, losses = token_cross_entropy(*chunked, labels, weights, transform, chunk)  # type: ignore[arg-type]
    (mine / 7).backward()
    torch.testing.assert_close(losses, expected.detach())
    for own, other in zip(chunked, whole, strict=True):
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-5, atol=1e-6)


def test_bf16_gradients_of_many_chunks_are_as_exact_as_those_of_all_logits() -> None:
    torch.manual_seed(0)
    hidden, weight = torch.randn(2048, WIDTH), torch.randn(VOCABULARY, WIDTH)
    labels = torch.randint(VOCABULARY, (2048,))
    exact = weight.clone().requires_grad_()
    cross_entropy(linear(hidden, exact), labels, reduction="sum").backward()
    errors = []
    for chunk in (64, 2048):
        rounded = weight.bfloat16().requires_grad_()
        token_cross_entropy(hidden.bfloat16(), rounded, None, labels, None, LogitTransform(), chunk)[0].backward()
        assert rounded.grad is not None and exact.grad is not None
        errors.append(float((rounded.grad.float() - exact.grad).norm() / exact.grad.norm()))
    assert errors[0] < 1.1 * errors[1] < 0.03


def test_memory_does_not_grow_with_tokens_times_vocabulary() -> None:
    peaks = {}
    for tokens in (64, 512):
        hidden, weight = torch.randn(tokens, 8, requires_grad=True), torch.randn(5_000, 8, requires_grad=True)
        labels = torch.zeros(tokens, dtype=torch.long)
        with LiveStorages() as live:
            token_cross_entropy(hidden, weight, None, labels, None, LogitTransform(), 64)[0].backward()
        peaks[tokens] = live.peak
    assert peaks[512] < peaks[64] + 2**18 < 512 * 5_000  # not even a byte for each logit


def test_a_batch_without_loss_has_gradients_of_zero() -> None:
    hidden, weight = torch.randn(0, 8, requires_grad=True), torch.randn(100, 8, requires_grad=True)
    token_cross_entropy(hidden, weight, None, torch.zeros(0, dtype=torch.long), None, LogitTransform(), 64)[
        0
    ].backward()
    assert weight.grad is not None and not weight.grad.any()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("chunked")
    make_model(home / "model")
    make_data(home / "rows.jsonl")
    rows = [
        json.loads(line) | {"weight": 0.5 + n % 3}
        for n, line in enumerate((home / "rows.jsonl").read_text().splitlines())
    ]
    for name, part in (("first", rows[:40]), ("second", rows[40:])):
        (home / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    return home


def run(home: Path, folder: Path, **settings: Any) -> Trained:
    data = settings.pop("data", str(home / "rows.jsonl"))
    return train_here(folder, home / "model", data, **SETTINGS | settings)


def notes(trained: Trained) -> str:
    return " ".join(note.message for note in trained.of(Note))


CASES: dict[str, dict[str, Any]] = {
    "loss weights and two data sets": {"weight_field": "weight", "gradient_accumulation_steps": 2, "packing": "none"},
    "a trained copy of the head": {"method": "lora", "modules_to_save": "lm_head"},
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_has_the_same_curves(home: Path, tmp_path: Path, case: str) -> None:
    settings = CASES[case] | {"data": json.dumps([str(home / "first.jsonl"), str(home / "second.jsonl")])}
    plain, chunked = (run(home, tmp_path / chosen, chunked_loss=chosen, **settings) for chosen in ("off", "on"))
    assert "in chunks" in notes(chunked) and "in chunks" not in notes(plain)
    names = {name for event in plain.events if (values := getattr(event, "values", None)) for name in values}
    compared = {name for name in names if "loss" in name or name == "grad_norm"}
    assert {"loss", "grad_norm", "eval_loss", "loss/first.jsonl"} <= compared
    for name in compared:
        assert chunked.series(name) == pytest.approx(plain.series(name), rel=1e-5), name


def test_a_head_with_an_adapter_trains_at_once(home: Path, tmp_path: Path) -> None:
    adapted = {"method": "lora", "target_modules": "q_proj, lm_head", "max_steps": 1}
    assert "in chunks" not in notes(run(home, tmp_path / "auto", **adapted))


def test_a_model_that_changes_its_logits_in_another_way_is_noticed(home: Path, tmp_path: Path) -> None:
    """HyperCLOVA X multiplies by what Granite divides by."""
    from transformers import HyperCLOVAXConfig, HyperCLOVAXForCausalLM

    config = HyperCLOVAXConfig.from_pretrained(home / "model", logits_scaling=5.0)
    HyperCLOVAXForCausalLM(config).save_pretrained(tmp_path / "model")
    for file in home.glob("model/token*"):
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    with pytest.raises(UserError) as refused:
        train_here(tmp_path / "run", tmp_path / "model", home / "rows.jsonl", **SETTINGS, chunked_loss="on")
    assert "after its head" in refused.value.problem.message


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["zero3", "fsdp"])
def test_sharded_heads_give_the_same_curves(tmp_path: Path, strategy: str) -> None:
    recipe = resumable(strategy, "full")
    plain, chunked = trained(recipe), recipe.train(tmp_path, chunked_loss="on", save_steps=0)
    assert "in chunks" in notes(chunked)
    assert list(chunked.losses()) == [1, 2, 3, 4]
    for name in ("loss", "grad_norm"):
        assert chunked.series(name) == pytest.approx(plain.series(name), rel=1e-4)  # AdamW enlarges rounding errors
        assert chunked.series(name)[1] == pytest.approx(plain.series(name)[1], rel=1e-5)
