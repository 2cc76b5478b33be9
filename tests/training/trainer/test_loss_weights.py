"""Losses, gradients and results of weighted turns are those of a plain loop, in every layout and on several ranks."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_model
from torch.nn.functional import cross_entropy
from trainer_process import Trained, start, train_here
from transformers import AutoModelForCausalLM

pytestmark = pytest.mark.train
STEPS, RATE = 2, 0.05
WEIGHTS = [
    (0.25, 1.0, 3.0),
    (2.0, 0.0, 1.0),
    (1.0, 0.5, 0.1),
    (0.001, 0.002, 0.003),
]  # of the row, its first and last answer
SETTINGS: dict[str, Any] = {
    "max_steps": None, "epochs": STEPS, "precision": "fp32", "optimizer": "sgd", "momentum": 0.0, "learning_rate": RATE,
    "lr_scheduler": "constant", "max_grad_norm": 0.0, "method": "full", "answer_rows": 0, "eval_steps": 0, "eval_split": 0,
    "weight_field": "weight", "max_length": 40,
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("weights")
    make_model(home / "model")
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows()))
    return home


def rows() -> list[dict[str, Any]]:
    """Eight chats of two answers; the last ones have no weights, and one has an answer beyond the maximum length."""
    made = []
    for number in range(8):
        row, first, last = WEIGHTS[number] if number < len(WEIGHTS) else (None, None, None)
        turns = [
            {"role": "user", "content": f"say {number}"},
            {"role": "assistant", "content": "abc"[: 1 + number % 3] * 2, "weight": first},
            {"role": "user", "content": "more"},
            {"role": "assistant", "content": "xyz" * (1 + number % 4) * (4 if number == 6 else 1), "weight": last},
        ]
        made.append({"messages": turns, "weight": row})
    return made


def plain_tokens(row: dict[str, Any], tokenizer: Any) -> tuple[list[int], list[float]]:
    """The tokens of a row and their weights, message by message."""
    tokens: list[int] = []
    weights: list[float] = []
    for message in row["messages"]:
        heading = tokenizer.encode(f"<|{message['role']}|>")
        body = tokenizer.encode(message["content"] + "<|end|>")
        given = [1.0 if value is None else value for value in (row["weight"], message.get("weight"))]
        loss = given[0] * given[1] if message["role"] == "assistant" else 0.0
        tokens += heading + body
        weights += [0.0] * len(heading) + [loss] * len(body)
    return tokens[:40], weights[:40]


def plain_loop(model_folder: Path) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the weights after STEPS steps of gradient descent on all rows, one row at a time."""
    from training.chat.tokenizer import load

    tokenizer = load(str(model_folder))
    model: Any = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    encoded = [plain_tokens(row, tokenizer) for row in rows()]
    losses = []
    for _ in range(STEPS):
        total: Any = 0.0
        for tokens, weights in encoded:
            logits = model(input_ids=torch.tensor([tokens])).logits[0, :-1]
            each = cross_entropy(logits, torch.tensor(tokens[1:]), reduction="none")
            total = total + (each * torch.tensor(weights[1:])).sum()
        loss = total / sum(sum(weights[1:]) for _, weights in encoded)
        model.zero_grad()
        loss.backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(RATE * parameter.grad)
        losses.append(loss.item())
    return losses, model.state_dict()


def assert_as_plain(trained: Trained, home: Path) -> None:
    losses, weights = plain_loop(home / "model")
    assert list(trained.losses().values()) == pytest.approx(losses, rel=1e-4)
    result = load_file(trained.run_dir / "model" / "model.safetensors")
    for name, value in result.items():
        torch.testing.assert_close(value.float(), weights[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    "split",
    [
        {"micro_batch_size": 8, "packing": "none"},
        {"micro_batch_size": 3, "gradient_accumulation_steps": 3, "packing": "padding_free"},
        {"micro_batch_size": 1, "gradient_accumulation_steps": 8, "packing": "packed"},
    ],
    ids=["padded", "flat, accumulated", "packed"],
)
def test_a_weighted_run_equals_a_plain_loop(tmp_path: Path, home: Path, split: dict[str, Any]) -> None:
    assert_as_plain(train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **SETTINGS | split), home)


def test_a_weighted_run_on_two_ranks_equals_a_plain_loop(tmp_path: Path, home: Path) -> None:
    split = {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "strategy": "ddp", "num_processes": 2}
    trained = start(tmp_path / "run", home / "model", home / "rows.jsonl", **SETTINGS | split)
    assert trained.finish() == 0, trained.log()
    assert_as_plain(trained, home)


def test_a_stream_has_the_weights_too(tmp_path: Path, home: Path) -> None:
    split = {"micro_batch_size": 4, "gradient_accumulation_steps": 2, "streaming": True}
    assert_as_plain(train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **SETTINGS | split), home)


def test_an_evaluation_is_weighted_in_the_same_way(tmp_path: Path, home: Path) -> None:
    settings = SETTINGS | {"validation_data": str(home / "rows.jsonl"), "eval_steps": 1, "learning_rate": 1e-9}
    trained = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings | {"micro_batch_size": 8})
    losses, _ = plain_loop(home / "model")
    assert next(iter(trained.evaluations().values())) == pytest.approx(losses[0], rel=1e-4)
