"""Distillation: losses that are those of a plain loop on the same samples, whatever the split; teachers and their tokens."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_model
from trainer_process import Trained, train_here
from transformers import AutoModelForCausalLM

STEPS, RATE, LONGEST, TEMPERATURE = 3, 0.5, 6, 0.8
NAMES = ("loss", "grad_norm", "completion_length", "entropy", "teacher_logprob")
SETTINGS: dict[str, Any] = {
    "task": "distill", "max_completion_length": LONGEST, "temperature": TEMPERATURE, "max_steps": STEPS, "epochs": 1,
    "precision": "fp32", "optimizer": "sgd", "momentum": 0.0, "learning_rate": RATE, "lr_scheduler": "constant",
    "max_grad_norm": 0.0, "method": "full", "answer_rows": 0, "eval_steps": 0, "eval_split": 0, "max_length": 40,
    "micro_batch_size": 8, "probe": "on",
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("distill")
    make_model(home / "model")
    ends = {"eos_token_id": [1, *range(5, 65)]}  # so that samples differ in length
    (home / "model" / "generation_config.json").write_text(json.dumps(ends))
    make_model(home / "teacher", hidden_size=32, layers=1)
    _sharpen(home / "teacher")
    rows = [{"prompt": f"say {'ab' * (number % 3)}{number}: ", "completion": "abc"[number % 3]} for number in range(24)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def _sharpen(folder: Path) -> None:
    """Makes the probabilities of an untrained model differ between tokens."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.lm_head.weight.mul_(20)
    model.save_pretrained(folder)


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The micro batches that a run in this process trains on, as they are."""
    from training.trainer.distillation_trainer import DistillationRun

    taken: list[dict[str, Any]] = []
    made = DistillationRun.sampled

    def sampled(self: Any, *arguments: Any) -> list[dict[str, Any]]:
        taken.extend(made(self, *arguments))
        return taken[-len(arguments[0]) :]

    monkeypatch.setattr(DistillationRun, "sampled", sampled)
    return taken


def samples_of(batches: list[dict[str, Any]]) -> list[tuple[list[int], list[int]]]:
    """Prompt and sample of each row of some batches."""
    return [
        (tokens[mask.bool()].tolist(), answer[kept.bool()].tolist())
        for batch in batches
        for tokens, mask, answer, kept in zip(
            batch["prompt_ids"], batch["prompt_mask"], batch["completion_ids"], batch["completion_mask"], strict=True
        )
    ]


def plain_loss(student: Any, teacher: Any, step: list[Any], coefficient: float) -> torch.Tensor:
    """The loss of a step's samples, token by token."""
    total: Any = 0.0
    for prompt, answer in step:
        tokens = torch.tensor([prompt + answer])
        with torch.no_grad():
            others = teacher(input_ids=tokens).logits[0] / TEMPERATURE
        own = student(input_ids=tokens).logits[0] / TEMPERATURE
        for place in range(len(prompt) - 1, len(prompt) + len(answer) - 1):
            p, q = others[place].softmax(0), own[place].softmax(0)
            if coefficient == 0:
                total = total + (p * (p / q).log()).sum()
            elif coefficient == 1:
                total = total + (q * (q / p).log()).sum()
            else:
                m = coefficient * p + (1 - coefficient) * q
                total = total + coefficient * (p * (p / m).log()).sum() + (1 - coefficient) * (q * (q / m).log()).sum()
    return total / sum(len(answer) for _, answer in step)


def assert_as_plain(trained: Trained, home: Path, steps: list[Any], coefficient: float) -> None:
    student: Any = AutoModelForCausalLM.from_pretrained(home / "model", dtype=torch.float32)
    teacher: Any = AutoModelForCausalLM.from_pretrained(home / "teacher", dtype=torch.float32)
    losses, norms = [], []
    for step in steps:
        student.zero_grad()
        value = plain_loss(student, teacher, step, coefficient)
        value.backward()
        norms.append(float(torch.stack([parameter.grad.norm() for parameter in student.parameters()]).norm()))
        losses.append(value.item())
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.sub_(RATE * parameter.grad)
    assert list(trained.losses().values()) == pytest.approx(losses, rel=1e-4, abs=1e-6)
    assert list(trained.gradient_norms().values()) == pytest.approx(norms, rel=1e-4)
    result = load_file(trained.run_dir / "model" / "model.safetensors")
    for name, value in result.items():
        torch.testing.assert_close(value.float(), student.state_dict()[name], rtol=1e-4, atol=1e-6)


@pytest.mark.train
@pytest.mark.parametrize("micro", [8, 2])
@pytest.mark.parametrize("coefficient", [1.0, 0.0, 0.5])
def test_a_run_is_that_of_a_plain_loop_on_its_samples(
    tmp_path: Path, home: Path, batches: list[dict[str, Any]], coefficient: float, micro: int
) -> None:
    split = {"micro_batch_size": micro, "gradient_accumulation_steps": 8 // micro}
    settings = SETTINGS | split | {"jsd_coefficient": coefficient, "teacher": str(home / "teacher")}
    trained = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    drawn, count = [samples_of([batch]) for batch in batches], 8 // micro
    assert len(drawn) == STEPS * count and len({len(answer) for part in drawn for _, answer in part}) > 1
    steps = [[row for part in drawn[first : first + count] for row in part] for first in range(0, len(drawn), count)]
    assert_as_plain(trained, home, steps, coefficient)
