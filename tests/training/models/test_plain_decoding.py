"""Tests of greedy answers: nothing of the model's generation configuration but token ids applies to them."""

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny import make_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from training.models.plain_decoding import own_values, plain_decoding
from training.results.answers import answer_all
from training.results.parity.generation import Whole
from training.scoring.request import Decoding
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


def test_the_model_s_own_configuration_is_a_choice_and_applies_whole(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = Question(0, "count 3: ", tokenizer("count 3: ")["input_ids"], "")
    penalized = loaded(folder, repetition_penalty=2.5, no_repeat_ngram_size=1)
    assert own_values(penalized) == {"repetition_penalty": 2.5, "no_repeat_ngram_size": 1}
    own, again = (answer_all(penalized, [question], tokenizer, 12, lambda _: None, Decoding.MODEL) for _ in "ab")
    assert own == again != answer_all(penalized, [question], tokenizer, 12, lambda _: None)


def test_own_sampling_has_the_same_seed_each_time_and_leaves_the_generator_as_it_was(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    question = Question(0, "count 3: ", tokenizer("count 3: ")["input_ids"], "")
    sampling = loaded(folder, do_sample=True, temperature=3.0)
    state = torch.get_rng_state()
    answers = [answer_all(sampling, [question], tokenizer, 12, lambda _: None, Decoding.MODEL) for _ in "ab"]
    assert answers[0] == answers[1]
    assert torch.equal(torch.get_rng_state(), state)


def test_parity_compares_answers_under_the_own_configuration_too(folder):
    tokens = AutoTokenizer.from_pretrained(folder)("count 3: ")["input_ids"]
    penalized = Whole(loaded(folder, repetition_penalty=2.5))
    assert penalized.own(tokens, None, 12) != penalized.greedy(tokens, None, 12)[0]
    assert Whole(loaded(folder)).own(tokens, None, 12) is None
