"""KTO and ORPO compute and save what plain loops do that are written from the papers."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_model
from torch.nn.functional import logsigmoid
from trainer_process import train_here
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.trainer.reporting_trainer import ReportingTrainer

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore")]  # of trl
RATE, BETA, STEPS = 0.5, 0.4, 3
# A mixed number of tokens, and a last step that is not full.
ANSWERS = [chr(97 + n) * (1 + 3 * (n % 4)) for n in range(10)]
SETTINGS: dict[str, Any] = {
    "method": "full", "precision": "fp32", "optimizer": "sgd", "momentum": 0.0, "learning_rate": RATE, "warmup": 0,
    "lr_scheduler": "constant", "weight_decay": 0.0, "max_grad_norm": 0, "max_steps": STEPS, "eval_split": 0, "eval_steps": 0,
    "micro_batch_size": 4, "gradient_accumulation_steps": 2, "packing": "none", "beta": BETA, "answer_rows": 0,
}  # fmt: skip
Row = dict[str, Any]
MicroBatch = list[Row]


class Recorded:
    """A run of a task on rows, and the micro batches of each of its steps as `first_answer` finds them in a batch."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, rows: list[Row], tokens: str, **settings: Any
    ) -> None:
        self.model = make_model(folder / "model", template=False)
        self.tokenizer = AutoTokenizer.from_pretrained(self.model)
        self.steps: dict[int, list[MicroBatch]] = {}
        answer = "chosen" if "chosen" in rows[0] else "completion"
        known = {tuple(self.joined(row["prompt"], row[answer])[0].tolist()): row for row in rows}
        trained = ReportingTrainer.training_step

        def recorded(trainer: Any, model: Any, inputs: Any, *arguments: Any, **named: Any) -> Any:
            masks = inputs[tokens.replace("input_ids", "attention_mask")].bool()
            found = [known[tuple(ids[mask].tolist())] for ids, mask in zip(inputs[tokens], masks, strict=True)]
            self.steps.setdefault(trainer.state.global_step, []).append(found)
            return trained(trainer, model, inputs, *arguments, **named)

        monkeypatch.setattr(ReportingTrainer, "training_step", recorded)
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        self.run = train_here(folder / "run", self.model, folder / "rows.jsonl", **SETTINGS | settings)

    def joined(self, prompt: str, answer: str) -> tuple[torch.Tensor, int]:
        """The tokens of a prompt with an answer and its end, and how many are the prompt's."""
        first, second = (self.tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer))
        return torch.tensor([*first, *second, self.tokenizer.eos_token_id]), len(first)

    def log_probabilities(self, model: Any, prompt: str, answer: str) -> tuple[torch.Tensor, torch.Tensor]:
        """Those of all tokens but the first, and of the answer's."""
        tokens, start = self.joined(prompt, answer)
        predicted = model(tokens[None]).logits[0, :-1].log_softmax(-1)
        found = predicted.gather(-1, tokens[1:, None])[:, 0]
        return found, found[start - 1 :]

    def agrees_with(self, loss: Callable[[Any, Any, list[MicroBatch]], torch.Tensor]) -> None:
        """Trains a copy of the model on the same rows; `loss` takes model, reference and the micro batches of a step."""
        model = AutoModelForCausalLM.from_pretrained(self.model)
        descend = torch.optim.SGD(model.parameters(), lr=RATE)
        reference, before = copy.deepcopy(model).eval(), copy.deepcopy(model.state_dict())
        assert sorted(self.steps) == list(range(STEPS))
        for step, micro_batches in self.steps.items():
            value = loss(model, reference, micro_batches)
            assert self.run.losses()[step + 1] == pytest.approx(value.item(), rel=1e-5)
            value.backward()
            descend.step()
            descend.zero_grad()
        saved, expected = load_file(self.run.run_dir / "model" / "model.safetensors"), model.state_dict()
        assert saved.keys() == expected.keys()
        apart, changed = (
            sum(float(((other[name] - expected[name]) ** 2).sum()) ** 0.5 for name in saved)
            for other in (saved, before)
        )
        assert apart < 1e-4 * changed


def test_kto_trains_and_saves_the_weights_of_a_plain_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"prompt": f"say {n}: ", "completion": answer, "label": n % 3 > 0} for n, answer in enumerate(ANSWERS)]
    weights = {True: 1.5, False: 0.5}
    named = {"desirable_weight": weights[True], "undesirable_weight": weights[False]}
    ran = Recorded(monkeypatch, tmp_path, rows, "input_ids", task="kto", **named)
    estimates = []

    def log_ratio(model: Any, reference: Any, prompt: str, answer: str) -> torch.Tensor:
        with torch.no_grad():
            expected = ran.log_probabilities(reference, prompt, answer)[1].sum()
        return ran.log_probabilities(model, prompt, answer)[1].sum() - expected

    def loss(model: Any, reference: Any, micro_batches: list[MicroBatch]) -> torch.Tensor:
        losses = []
        for rows in micro_batches:
            with torch.no_grad():  # each prompt with the answer of the row before it
                pairs = zip(rows, [rows[-1], *rows[:-1]], strict=True)
                ratios = [log_ratio(model, reference, row["prompt"], other["completion"]) for row, other in pairs]
                estimate = torch.stack(ratios).mean().clamp(min=0)
            estimates.append(float(estimate))
            for row in rows:
                beyond = log_ratio(model, reference, row["prompt"], row["completion"]) - estimate
                value = torch.sigmoid(BETA * (beyond if row["label"] else -beyond))
                losses.append(weights[row["label"]] * (1 - value))
        return torch.stack(losses).mean()

    ran.agrees_with(loss)
    assert max(estimates) > 0.01


def test_orpo_s_likelihood_is_that_of_prompt_and_answer_and_its_odds_those_of_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{"prompt": f"say {n}: ", "chosen": answer, "rejected": "no" * (n + 1)} for n, answer in enumerate(ANSWERS)]
    ran = Recorded(monkeypatch, tmp_path, rows, "chosen_input_ids", task="orpo")

    def log_odds(of_answer: torch.Tensor) -> torch.Tensor:
        mean = of_answer.mean()
        return mean - torch.log1p(-mean.exp())

    def loss(model: Any, _: Any, micro_batches: list[MicroBatch]) -> torch.Tensor:
        likelihoods, odds = [], []
        for row in (row for rows in micro_batches for row in rows):
            whole, chosen = ran.log_probabilities(model, row["prompt"], row["chosen"])
            rejected = ran.log_probabilities(model, row["prompt"], row["rejected"])[1]
            likelihoods.append(whole)
            odds.append(logsigmoid(log_odds(chosen) - log_odds(rejected)))
        return -torch.cat(likelihoods).mean() - BETA * torch.stack(odds).mean()

    ran.agrees_with(loss)
