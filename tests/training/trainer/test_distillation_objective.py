"""Distillation: losses that are those of a plain loop on the same samples, whatever the split; teachers and their tokens."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import make_model
from trainer_process import Trained, start, train_here
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.config.run_config import RunConfig
from training.errors import UserError
from training.run_folder.events import Finished, Metrics, Note, Resumed, SampleDrawn
from training.run_folder.paths import checkpoint_dir
from training.trainer import overlap
from training.trainer.jensen_shannon import token_measures

STEPS, RATE, LONGEST, TEMPERATURE = 3, 0.5, 6, 0.8
NAMES = ("loss", "grad_norm", "completion_length", "entropy", "teacher_logprob")
SETTINGS: dict[str, Any] = {
    "task": "distill", "max_completion_length": LONGEST, "temperature": TEMPERATURE, "max_steps": STEPS, "epochs": 1,
    "precision": "fp32", "optimizer": "sgd", "momentum": 0.0, "learning_rate": RATE, "lr_scheduler": "constant",
    "max_grad_norm": 0.0, "method": "full", "answer_rows": 0, "eval_steps": 0, "eval_split": 0, "max_length": 40,
    "micro_batch_size": 8, "probe": "on", "baseline_prompts": 0,
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
    from training.trainer.distillation_objective import DistillationObjective

    taken: list[dict[str, Any]] = []
    made = DistillationObjective.sampled

    def sampled(self: Any, *arguments: Any) -> list[dict[str, Any]]:
        taken.extend(made(self, *arguments))
        return taken[-len(arguments[0]) :]

    monkeypatch.setattr(DistillationObjective, "sampled", sampled)
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


@pytest.mark.parametrize("coefficient", [1.0, 0.0, 0.5, 0.1])
def test_the_loss_and_its_gradient_are_those_of_trl(coefficient: float) -> None:
    from trl.trainer.distillation_trainer import _chunked_divergence_loss

    torch.manual_seed(0)
    states, others, head, other_head = (
        torch.randn(2, 5, 8),
        torch.randn(2, 5, 6),
        torch.randn(40, 8),
        torch.randn(40, 6),
    )
    mask, weight = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]), head.clone().requires_grad_()
    logits, drawn = states @ weight.T, torch.randint(40, (10,))
    own = token_measures(logits.flatten(0, 1), (others @ other_head.T).flatten(0, 1), drawn, coefficient, TEMPERATURE)
    kept = mask.flatten().bool()
    loss = own.divergence[kept].mean()
    loss.backward()
    again = head.clone().requires_grad_()
    expected, entropy, count = _chunked_divergence_loss(
        states, others, again, other_head, mask, coefficient, temperature=TEMPERATURE
    )
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(weight.grad, again.grad, rtol=1e-4, atol=1e-6)
    assert count == 8 and own.entropy[kept].sum().item() == pytest.approx(entropy.item(), rel=1e-5)
    log_softmax = (others @ other_head.T / TEMPERATURE).flatten(0, 1).log_softmax(-1)
    torch.testing.assert_close(own.teacher_logprob, log_softmax[torch.arange(10), drawn])


@pytest.mark.train
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp"])
def test_two_ranks_draw_the_same_samples_and_train_as_one(tmp_path: Path, home: Path, strategy: str) -> None:
    settings = SETTINGS | {
        "teacher": str(home / "teacher"),
        "baseline_prompts": 3,
        "eval_steps": 1,
        "validation_data": str(home / "rows.jsonl"),
    }
    alone = train_here(tmp_path / "alone", home / "model", home / "rows.jsonl", **settings)
    split = {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "strategy": strategy, "num_processes": 2}
    shared = start(tmp_path / "shared", home / "model", home / "rows.jsonl", **settings | split)
    assert shared.finish() == 0, shared.log()
    for name in (*NAMES, "cut_off", "eval_loss", "eval_teacher_logprob", "eval_cut_off"):
        assert len(alone.series(name)) == STEPS + (0 in alone.series(name))
        assert shared.series(name) == pytest.approx(alone.series(name), rel=1e-4, abs=1e-6)
    written = [[_comparable(one) for one in run.of(SampleDrawn)] for run in (alone, shared)]
    assert written[0] == written[1] and [one["step"] for one in written[0]] == [0] * 3 + [1] * 8 + [2] * 8 + [3] * 8


def _comparable(drawn: SampleDrawn) -> dict[str, Any]:
    """A sample without its time, and with a score that rounding does not change."""
    score = f"{drawn.reward:.3g}"
    return vars(drawn) | {"time": None, "reward": score, "scores": dict.fromkeys(drawn.scores, score)}


@pytest.mark.train
def test_each_sample_is_kept_with_what_the_teacher_finds_of_it(
    tmp_path: Path, home: Path, batches: list[dict[str, Any]]
) -> None:
    settings = SETTINGS | {"teacher": str(home / "teacher"), "max_steps": 1}
    trained = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    teacher: Any = AutoModelForCausalLM.from_pretrained(home / "teacher", dtype=torch.float32)
    rows = [json.loads(line) for line in (home / "rows.jsonl").read_text().splitlines()]
    decode = AutoTokenizer.from_pretrained(home / "model").decode
    drawn, samples = (
        trained.of(SampleDrawn),
        {decode(prompt): (prompt, answer) for prompt, answer in samples_of(batches)},
    )
    assert len(drawn) == len(samples) == 8
    for one in drawn:
        prompt, answer = samples[one.prompt]
        logits = teacher(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1] / TEMPERATURE
        expected = logits.log_softmax(-1)[range(len(answer)), answer].mean().item()
        assert one.reward == one.scores["teacher_logprob"] == pytest.approx(expected, rel=1e-4)
        assert (one.prompt, one.expected) == (rows[one.row]["prompt"], rows[one.row]["completion"])
        assert one.advantage is None and one.tokens == len(answer) and one.ended == (answer[-1] in (1, *range(5, 65)))


@pytest.mark.train
def test_a_run_that_is_to_be_reviewed_ends_with_the_samples_of_the_untrained_model(tmp_path: Path, home: Path) -> None:
    settings = SETTINGS | {"teacher": str(home / "teacher"), "baseline_prompts": 5, "stop_after_baseline": True}
    trained = start(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    assert trained.finish() == 0, trained.log()
    (finished,) = trained.of(Finished)
    assert finished.outcome == "review" and not trained.losses()
    assert [one.step for one in trained.of(SampleDrawn)] == [0] * 5


@pytest.mark.train
def test_a_resumed_run_draws_the_same_samples(tmp_path: Path, home: Path) -> None:
    settings = SETTINGS | {"max_steps": 4, "save_steps": 2, "epochs": 4, "teacher": str(home / "teacher")}
    whole = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    shutil.rmtree(checkpoint_dir(tmp_path / "run", 4))
    values = {step: [whole.series(name)[step] for name in NAMES] for step in (3, 4)}
    resumed = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    (start,) = resumed.of(Resumed)
    taken = [event for event in resumed.of(Metrics) if "teacher_logprob" in event.values][-2:]
    assert start.step == 2 and {event.step: [event.values[name] for name in NAMES] for event in taken} == values


@pytest.mark.train
def test_a_run_with_its_own_model_as_the_teacher_has_nothing_to_learn(tmp_path: Path, home: Path) -> None:
    settings = SETTINGS | {"teacher": str(home / "model"), "method": "lora", "jsd_coefficient": 0.5}
    trained = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    assert trained.losses()[1] == pytest.approx(0, abs=1e-6) and trained.gradient_norms()[1] == pytest.approx(
        0, abs=1e-4
    )


@pytest.mark.train
def test_the_result_of_a_run_is_a_teacher_with_its_adapter(tmp_path: Path, home: Path) -> None:
    taught = train_here(
        tmp_path / "taught",
        home / "model",
        home / "rows.jsonl",
        method="lora",
        learning_rate=0.05,
        max_steps=4,
        eval_steps=0,
    )
    settings = SETTINGS | {"teacher": str(taught.run_dir / "adapter"), "max_steps": 1, "jsd_coefficient": 0.0}
    trained = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    base = train_here(
        tmp_path / "base", home / "model", home / "rows.jsonl", **settings | {"teacher": str(home / "model")}
    )
    assert base.losses()[1] == pytest.approx(0, abs=1e-6)
    assert trained.losses()[1] > 1e-3


@pytest.mark.train
@pytest.mark.parametrize("larger", ["model", "teacher"])
def test_vocabularies_that_are_padded_to_different_sizes_are_cut_to_the_smaller(
    tmp_path: Path, home: Path, larger: str
) -> None:
    padded = shutil.copytree(home / larger, tmp_path / larger)
    model: Any = AutoModelForCausalLM.from_pretrained(padded)
    model.resize_token_embeddings(300, mean_resizing=False)
    with torch.no_grad():
        model.lm_head.weight[261:] = 5  # more probable than any token, if they counted
    model.save_pretrained(padded)
    folders = {"model": home / "model", "teacher": home / "teacher"}
    runs = [
        train_here(
            tmp_path / name,
            chosen["model"],
            home / "rows.jsonl",
            **SETTINGS | {"max_steps": 1, "teacher": str(chosen["teacher"])},
        )
        for name, chosen in (("equal", folders), ("cut", folders | {larger: padded}))
    ]
    assert runs[1].losses() == pytest.approx(runs[0].losses(), rel=1e-5)
    assert [len([1 for event in run.of(Note) if "the first 261" in event.message]) for run in runs] == [0, 1]


@pytest.mark.train
def test_a_teacher_with_other_tokens_is_refused_with_one_of_them(tmp_path: Path, home: Path) -> None:
    other = shutil.copytree(home / "teacher", tmp_path / "other")
    text = (other / "tokenizer.json").read_text()
    (other / "tokenizer.json").write_text(text.replace('"!":', '"zebra":'))
    with pytest.raises(UserError) as error:
        train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **SETTINGS | {"teacher": str(other)})
    assert error.value.problem.field == "teacher" and "2 of 262 tokens differ" in error.value.message
    assert "'!' is token none, and" in error.value.message


@pytest.mark.train
def test_samples_of_the_untrained_model_that_the_teacher_finds_improbable_are_a_warning(
    tmp_path: Path, home: Path
) -> None:
    settings = SETTINGS | {"teacher": str(home / "teacher"), "max_steps": 1, "baseline_prompts": 16}
    trained = train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    notes = [event for event in trained.of(Note) if "untrained model" in event.message]
    assert [note.level for note in notes] == ["info", "warning"]
    assert f"{trained.series('teacher_logprob')[0]:.3g}" in notes[0].message and "16 prompts" in notes[0].message
    assert "(task sft)" in notes[1].message
    assert min(trained.series("teacher_logprob")) == 0 and 0 not in trained.losses()


def test_samples_that_are_probable_and_end_are_no_warning() -> None:
    config = RunConfig(model="m", data="d", task="distill", max_completion_length=56)
    values = {"teacher_logprob": -1.2, "cut_off": 0.1, "completion_length": 20.0}
    assert overlap.warnings(values, config) == [] and "a probability of 30.1%" in overlap.note(values, 16)
    (cut,) = overlap.warnings(values | {"cut_off": 0.95}, config)
    assert "95% of" in cut and "56 tokens" in cut


@pytest.mark.train
@pytest.mark.parametrize("quantization", ["4bit", "8bit"])
def test_a_quantized_teacher_gives_nearly_the_same_loss(tmp_path: Path, home: Path, quantization: str) -> None:
    settings = SETTINGS | {"teacher": str(home / "teacher"), "max_steps": 1}
    run = start(
        tmp_path / "run", home / "model", home / "rows.jsonl", **settings | {"teacher_quantization": quantization}
    )
    whole = train_here(tmp_path / "whole", home / "model", home / "rows.jsonl", **settings)
    assert run.finish() == 0, run.log()
    assert run.losses() == pytest.approx(whole.losses(), rel=0.05) and run.losses() != whole.losses()
