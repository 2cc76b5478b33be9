"""A reward model as a reward: its scores are those of transformers for the same texts, in training as elsewhere."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import gguf_families
import pytest
import torch
from peft import PeftModel
from tiny import make_model, make_reward_model
from trained import trained
from trainer_process import train_here
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from training.config.choices import Precision
from training.config.run_config import RunConfig
from training.data.example import Example
from training.errors import UserError
from training.model_info.reward_model import check_reward_model
from training.models.reward_model import RewardScorer, conversation
from training.rewards.reward_model import RewardModel
from training.run_folder.events import Note, SampleDrawn

# PEFT reads a property that transformers has renamed.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing:FutureWarning")]
TURNS = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Why?"}]


def scorer(folder: Path, rows: int = 3, **options: Any) -> RewardScorer:
    config = RunConfig(model="-", data="-", task="reward")
    return RewardScorer(RewardModel(model=str(folder), **options), config, Precision.FP32, torch.device("cpu"), rows)


def plain_scores(folder: Path, texts: list[str], longest: int = 1024, *, special: bool = False) -> list[float]:
    """The scores of transformers for texts, one by one."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    adapter = folder / "adapter_config.json"
    base = json.loads(adapter.read_text())["base_model_name_or_path"] if adapter.exists() else folder
    model: Any = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    model.config.pad_token_id = tokenizer.pad_token_id
    model = (PeftModel.from_pretrained(model, str(folder)) if adapter.exists() else model).eval()
    with torch.no_grad():
        ids = [tokenizer(text, add_special_tokens=special)["input_ids"][:longest] for text in texts]
        return [model(input_ids=torch.tensor([row])).logits.item() for row in ids]


@pytest.mark.train
@pytest.mark.parametrize("method", ["lora", "full"])
def test_the_result_of_a_reward_run_scores_padded_batches_as_transformers_does(method: str) -> None:
    folder = trained(f"task_reward_{method}").run_dir / ("adapter" if method == "lora" else "model")
    rows = [Example(prompt=f"row {n}: ", answer=" yes") for n in range(7)]
    answers = ["a" * (1 + 5 * number % 13) for number in range(7)]
    check_reward_model(folder, "run")
    found, trouble = scorer(folder).score(
        [conversation(row, answer) for row, answer in zip(rows, answers, strict=True)]
    )
    end = AutoTokenizer.from_pretrained(folder).eos_token
    texts = [f"{row.prompt} {answer}{end}" for row, answer in zip(rows, answers, strict=True)]
    assert found == pytest.approx(plain_scores(folder, texts), abs=1e-5) and trouble is None
    assert len(set(found)) == 7


def test_a_chat_is_rendered_by_the_reward_model_s_template_and_cut_to_its_length(tmp_path: Path) -> None:
    folder = make_reward_model(tmp_path / "model")
    rows = [Example(messages=[*TURNS, {"role": "assistant", "content": "Because."}]), Example(messages=TURNS)]
    settings = {"version": 1, "settings": {"task": "reward", "max_length": 24}}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    chats = [[*TURNS, {"role": "assistant", "content": text}] for text in ("So.", "It is a long story of many words.")]
    texts = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in chats]
    asked = [conversation(row, chat[-1]["content"]) for row, chat in zip(rows, chats, strict=True)]
    assert scorer(folder).score(asked)[0] == pytest.approx(plain_scores(folder, texts), abs=1e-5)
    (folder / "lathe.json").write_text(json.dumps(settings))
    assert scorer(folder).score(asked)[0] == pytest.approx(plain_scores(folder, texts, 24), abs=1e-5)
    assert scorer(folder, max_length=30).score(asked)[0] == pytest.approx(plain_scores(folder, texts, 30), abs=1e-5)


def test_a_score_that_is_not_finite_is_none_and_told(tmp_path: Path) -> None:
    model = scorer(make_reward_model(tmp_path / "model"))
    model._model.score.weight.data.fill_(float("inf"))
    found, trouble = model.score([Example(prompt="a", answer="b")])
    assert found == [None] and trouble is not None and trouble.failed == 1 and "not a finite number" in trouble.sentence


def test_models_that_give_no_single_score_are_refused(tmp_path: Path) -> None:
    for folder, words in (
        (make_model(tmp_path / "causal"), "its architecture is LlamaForCausalLM"),
        (make_reward_model(tmp_path / "three", labels=3), "it has 3 labels"),
        (make_reward_model(tmp_path / "two", labels=2), "it has 2 labels"),
    ):
        with pytest.raises(UserError, match=words) as refused:
            check_reward_model(folder, "NAME")
        assert (refused.value.problem.field, refused.value.problem.value) == ("rewards", "NAME")
        with pytest.raises(UserError, match=words):
            scorer(folder)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_labels": "x"}, "has num_labels 'x' in its config.json, which is not a whole number"),
        ({"num_labels": None, "id2label": 5}, "has id2label 5 in its config.json"),
        ({"architectures": [5]}, r"has architectures \[5\] in its config.json, which is not a list of names"),
        ({"architectures": "LlamaForSequenceClassification"}, "has architectures 'LlamaFor"),
    ],
)
def test_an_odd_config_json_is_refused_with_its_value(tmp_path: Path, values: dict[str, Any], words: str) -> None:
    folder = make_model(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | values))
    with pytest.raises(UserError, match=words):
        check_reward_model(folder, "NAME")


def test_a_damaged_record_is_an_error_of_the_rewards(tmp_path: Path) -> None:
    folder = make_reward_model(tmp_path / "model")
    for settings in (None, []):
        (folder / "lathe.json").write_text(json.dumps({"version": 1, "settings": settings}))
        with pytest.raises(UserError, match=r"has no readable lathe\.json") as refused:
            scorer(folder)
        assert refused.value.problem.field == "rewards"


@pytest.mark.train
def test_adapters_without_one_score_are_refused() -> None:
    for recipe, words in (("sft_lora", "an adapter without a score"), ("task_classification_lora", "labels")):
        with pytest.raises(UserError, match=words):
            check_reward_model(trained(recipe).run_dir / "adapter", "NAME")


@pytest.mark.train
def test_a_run_learns_from_a_reward_model_with_another_tokenizer(tmp_path: Path) -> None:
    policy, scores = (
        make_model(tmp_path / "policy"),
        make_reward_model(tmp_path / "scores", make=partial(gguf_families.make, "gpt2")),
    )
    rows = [{"prompt": f"say {number}: ", "number": number} for number in range(8)]  # without answers
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rewards = [{"reward": "model", "model": str(scores), "weight": 2}, {"reward": "length", "most": 3}]
    settings = {
        "task": "grpo", "rewards": json.dumps(rewards), "num_generations": 4, "max_completion_length": 6, "max_steps": 2,
        "micro_batch_size": 4, "gradient_accumulation_steps": 2, "precision": "fp32", "answer_rows": 0, "eval_steps": 1,
        "eval_split": 2, "baseline_prompts": 2, "method": "lora",
    }  # fmt: skip
    run = train_here(tmp_path / "run", policy, tmp_path / "rows.jsonl", **settings)
    drawn: list[SampleDrawn] = run.of(SampleDrawn)
    texts = [f"{one.prompt}{one.text}{AutoTokenizer.from_pretrained(scores).eos_token}" for one in drawn]
    assert [one.scores["model"] for one in drawn] == pytest.approx(plain_scores(scores, texts), abs=1e-5)
    assert drawn[0].reward == pytest.approx(2 * drawn[0].scores["model"] + drawn[0].scores["length"])
    assert len(drawn) == 8 + 2 * 8 and set(run.series("reward/model")) == {0, 1, 2} and run.series("eval_reward")
    assert not [note.message for note in run.of(Note) if note.message.startswith("Reward ")]
