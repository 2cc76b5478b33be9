"""What a model has forgotten: nothing if it is the base, and more the further its weights have moved."""

import json
from contextlib import nullcontext

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import make_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.config.run_config import RunConfig
from training.results.answers import answer_all
from training.results.evaluate import _before, prompted
from training.results.forgetting import forgotten
from training.scoring.request import EvaluationRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def measured(folder, noise, text="a plain text"):
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    base, model = (AutoModelForCausalLM.from_pretrained(folder).eval() for _ in "ab")
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(noise * torch.randn_like(weight))
    asked = [(tokenizer("count 3: ")["input_ids"], "4 5 6"), (tokenizer("abc")["input_ids"], "")]
    return forgotten(model, lambda: nullcontext(base), tokenizer, asked, text)


def test_a_model_that_has_not_moved_has_forgotten_nothing(folder):
    found = measured(folder, 0.0)
    assert found["kl"] == pytest.approx(0, abs=1e-6)
    assert found["loss_before"] == found["loss_after"] > 0
    assert (found["prompts"], found["text_tokens"]) == (2, len("a plain text") - 1)


def test_the_divergence_grows_with_the_distance_of_the_weights(folder):
    near, far = measured(folder, 0.01), measured(folder, 0.1)
    assert 0 < near["kl"] < far["kl"]
    assert abs(far["loss_after"] - far["loss_before"]) > abs(near["loss_after"] - near["loss_before"])


def test_the_divergence_is_that_of_the_distributions_by_hand(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(1)
    base, model = (AutoModelForCausalLM.from_pretrained(folder).eval() for _ in "ab")
    with torch.no_grad():
        model.lm_head.weight += 0.05 * torch.randn_like(model.lm_head.weight)
    prompt = tokenizer("ab")["input_ids"]
    found = forgotten(model, lambda: nullcontext(base), tokenizer, [(prompt, "")], "")
    with torch.no_grad():
        p, q = (m(input_ids=torch.tensor([prompt])).logits[0, -1].double().softmax(-1) for m in (base, model))
    assert found["kl"] == pytest.approx(float((p * (p / q).log()).sum()), abs=1e-6)
    assert found["text_tokens"] > 500  # of Lathe's own text


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT
def test_cases_are_answered_by_the_base_below_an_adapter_too(folder, tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    base = AutoModelForCausalLM.from_pretrained(folder).eval()
    lora = LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(folder), lora).eval()
    config = RunConfig(model=str(folder), data="d")
    request = EvaluationRequest.model_validate(
        {"prompts": [{"user": "count 3: ", "expect": "baseline"}], "metrics": []}
    )
    answers = _before(config, request, model, tokenizer, 8, tmp_path, lambda *_: None)
    asked = prompted(config, request, tokenizer)
    assert answers == answer_all(base, asked, tokenizer, 8, lambda _: None)
    found = json.loads((tmp_path / "summary.json").read_text())["forgetting"]
    assert found["kl"] > 0 and found["loss_before"] != found["loss_after"]
