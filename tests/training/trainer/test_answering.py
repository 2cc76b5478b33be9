"""Greedy answers by forward passes are those of `generate`, and their scores are means over all rows."""

import json

import pytest
import torch
from peft import PromptTuningConfig, get_peft_model
from tiny import make_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    T5Config,
    T5ForConditionalGeneration,
)

from training.config.run_config import RunConfig
from training.data.example import Example
from training.trainer.answering import SampleAnswers, asked_by, greedy

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
CPU = torch.device("cpu")
PROMPTS = [[3, 20, 41, 77, 15], [9, 60], [100]]
ENDS, PADDING, LONGEST = [1, 33, 150], 0, 12


def gpt2(folder):
    return GPT2LMHeadModel(GPT2Config(vocab_size=261, n_embd=32, n_layer=2, n_head=2, n_positions=64, eos_token_id=1))


def t5(folder):
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    return T5ForConditionalGeneration(T5Config(vocab_size=261, **sizes, decoder_start_token_id=0, pad_token_id=0))


def llama(folder):
    return AutoModelForCausalLM.from_pretrained(make_model(folder))


def prompt_tuned(folder):
    return get_peft_model(llama(folder), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))


@pytest.mark.parametrize("make", [llama, gpt2, t5, prompt_tuned])
def test_answers_are_those_of_generate_for_each_prompt_alone(tmp_path, make):
    torch.manual_seed(4)
    model = make(tmp_path / "model").eval()
    answers = greedy(model, PROMPTS, LONGEST, ENDS, PADDING, CPU)
    for prompt, answer in zip(PROMPTS, answers, strict=True):
        ids = torch.tensor([prompt])
        asked = {
            "input_ids": ids,
            "attention_mask": torch.ones_like(ids),
            "pad_token_id": PADDING,
            "eos_token_id": ENDS,
        }
        output = model.generate(**asked, do_sample=False, max_new_tokens=LONGEST)[0].tolist()
        new = output[1 if make is t5 else len(prompt) :]
        assert answer == [token for token in new if token not in ENDS], prompt


def test_the_scores_are_means_over_the_rows_and_the_model_keeps_its_mode(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(make_model(tmp_path / "model"))
    model = llama(tmp_path / "model").train()
    config = RunConfig(model="m", data="d", eval_answers=3, eval_metrics="exact_match, rougeL", max_new_tokens=4)
    plain, warned = [Example(prompt=f"{word} ", answer="x") for word in "abcd"], list[str]()
    first = SampleAnswers(config, enumerate(plain), tokenizer, warned.append)
    checks = []
    assert first.scores(model, CPU, lambda: checks.append(1)) == {"eval_exact_match": 0.0, "eval_rougeL": 0.0}
    assert (model.training, len(checks)) == (True, 1)
    tokens = greedy(model.eval(), [tokenizer("a ")["input_ids"]], 4, [1], 0, CPU)
    own = Example(prompt="a ", answer=tokenizer.decode(tokens[0], skip_special_tokens=True))
    found = SampleAnswers(config, enumerate([own, *plain[1:]]), tokenizer, warned.append).scores(
        model, CPU, lambda: None
    )
    assert found["eval_exact_match"] == pytest.approx(1 / 3), json.dumps(own.answer)
    assert warned == []


@pytest.mark.parametrize("setting", ["eval_answers", "answer_rows"])
def test_rows_without_a_prompt_are_said_to_leave_nothing_to_answer(tmp_path, setting):
    tokenizer = AutoTokenizer.from_pretrained(make_model(tmp_path / "model"))
    config = RunConfig(model="m", data="d", task="pretraining", **{setting: 3})
    warned = []
    assert asked_by(setting, enumerate([Example(answer="a whole text")]), config, tokenizer, warned.append) == []
    assert warned == [f"No held-out row has a prompt to answer, so {setting} has no effect."]
