"""Tests of greedy answers: nothing of the model's generation configuration but token ids applies to them."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import make_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.models.plain_decoding import plain_decoding
from training.results.answers import answer_all
from training.results.parity.generation import Whole
from training.trainer.answering import Question


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("model"))


def loaded(folder, *, adapter=False, **generation):
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    model.generation_config.update(**generation)
    return (
        get_peft_model(model, LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear")).eval()
        if adapter
        else model
    )


PENALTIES = {
    "repetition_penalty": 2.5,
    "no_repeat_ngram_size": 1,
    "suppress_tokens": list(range(5, 40)),
    "min_new_tokens": 3,
}


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT
@pytest.mark.parametrize("adapter", [False, True])
def test_answers_of_a_model_and_those_that_parity_compares_ignore_its_penalties(folder, adapter):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokens = tokenizer("count 3: ")["input_ids"]
    question = Question(0, "count 3: ", tokens, "")
    plain, penalized = loaded(folder), loaded(folder, adapter=adapter, **PENALTIES)
    (expected,) = answer_all(plain, [question], tokenizer, 12, lambda _: None)
    assert answer_all(penalized, [question], tokenizer, 12, lambda _: None) == [expected]
    assert Whole(penalized).greedy(tokens, None, 12)[0] == Whole(plain).greedy(tokens, None, 12)[0]
    ids = torch.tensor([tokens])
    assert (
        penalized.generate(input_ids=ids, max_new_tokens=12).tolist()
        != plain.generate(input_ids=ids, max_new_tokens=12).tolist()
    )


def test_the_configuration_of_the_model_is_its_own_again_afterwards(folder):
    model = loaded(folder, forced_bos_token_id=7, repetition_penalty=2.5)
    with plain_decoding(model):
        assert (model.generation_config.forced_bos_token_id, model.generation_config.repetition_penalty) == (7, None)
    assert model.generation_config.repetition_penalty == 2.5
