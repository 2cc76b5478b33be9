"""The serving program: prompts as in training, answers of the base and of several adapters, streams, and errors."""

import json

import pytest
from starlette.testclient import TestClient
from tiny import make_model

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]

MESSAGES = [{"role": "system", "content": "Count."}, {"role": "user", "content": "Höhe 3"}]
TOKEN = "of the test"


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base model, and two adapters on it whose weights are random."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    folder = tmp_path_factory.mktemp("models")
    model = make_model(folder / "base")
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        get_peft_model(AutoModelForCausalLM.from_pretrained(model), lora).save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(model).save_pretrained(folder / name)
        GenerationConfig(eos_token_id=[1]).save_pretrained(folder / name)
    return folder


@pytest.fixture(scope="module")
def served(folders):
    from training.serving.loaded import Base, load

    adapters = {name: folders / name for name in ("one", "two")}
    return load(Base(str(folders / "base"), "base"), adapters, {"whole": folders / "base"}, {})


@pytest.fixture(scope="module")
def client(served):
    from training.serving.web import Api

    with TestClient(Api(served, TOKEN).app(), headers={"Authorization": f"Bearer {TOKEN}"}) as client:
        yield client


def ask(client, **fields):
    body = {"model": "base", "messages": MESSAGES, "temperature": 0, "max_tokens": 6, "return_token_ids": True} | fields
    return client.post("/v1/chat/completions", json=body)


def chunks(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_prompt_has_the_same_tokens_as_in_training(client, folders):
    from training.chat.tokenizer import load
    from training.data.example import Example
    from training.tokens.encoding import Encoder
    from training.tokens.rendering import Renderer

    tokenizer = load(str(folders / "base"))
    example = Example(messages=[*MESSAGES, {"role": "assistant", "content": "4"}])
    trained = Encoder(tokenizer).prompt(Renderer(tokenizer).last_turn(example))
    assert ask(client).json()["prompt_token_ids"] == trained
    shown = client.post("/tokenize", json={"model": "one", "messages": MESSAGES, "return_token_strs": True}).json()
    assert shown["tokens"] == trained
    assert shown["token_strs"][:2] == ["<|system|>", "C"]


def test_base_and_adapters_answer_as_each_does_when_loaded_alone(client, folders):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    answers = {name: ask(client, model=name).json() for name in ("one", "base", "two", "whole")}
    tokens = {name: answer["choices"][0]["token_ids"] for name, answer in answers.items()}
    assert len({tuple(ids) for ids in tokens.values()}) == 3
    for name, expected in tokens.items():
        alone = AutoModelForCausalLM.from_pretrained(folders / "base")
        if name in ("one", "two"):
            alone = PeftModel.from_pretrained(alone, str(folders / name))
        prompt = torch.tensor([answers[name]["prompt_token_ids"]])
        generated = alone.generate(
            input_ids=prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=6
        )
        assert generated[0, prompt.shape[1] :].tolist() == expected, name


def test_a_stream_is_the_same_answer_in_chunks(client):
    whole = ask(client, model="one", logprobs=True, top_logprobs=2).json()
    streamed = chunks(ask(client, model="one", stream=True, stream_options={"include_usage": True}))
    choices = [chunk["choices"][0] for chunk in streamed[:-1]]
    assert streamed[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert [token for choice in choices for token in choice.get("token_ids", [])] == whole["choices"][0]["token_ids"]
    assert (
        "".join(choice["delta"].get("content", "") for choice in choices) == whole["choices"][0]["message"]["content"]
    )
    assert choices[-1]["finish_reason"] == whole["choices"][0]["finish_reason"] == "length"
    assert streamed[-1]["usage"] == whole["usage"] | {"completion_tokens": 6}
    first = whole["choices"][0]["logprobs"]["content"][0]
    assert first["logprob"] == max(one["logprob"] for one in first["top_logprobs"]) < 0


def test_sampling_repeats_with_its_seed_and_follows_top_k(client):
    def sampled(**fields):
        return ask(client, temperature=2.0, **fields).json()["choices"][0]["token_ids"]

    assert sampled(seed=1) == sampled(seed=1) != sampled(seed=2)
    assert sampled(top_k=1) == ask(client).json()["choices"][0]["token_ids"]


def test_an_answer_ends_before_a_stop_string(client):
    body = {"model": "base", "prompt": "ab", "temperature": 1, "seed": 3, "max_tokens": 40}
    text = client.post("/v1/completions", json=body).json()["choices"][0]["text"]
    stop = text[3:5]
    choice = client.post("/v1/completions", json=body | {"stop": [stop]}).json()["choices"][0]
    assert (choice["text"], choice["finish_reason"]) == (text[: text.index(stop)], "stop")


@pytest.mark.parametrize(
    ("fields", "status", "field", "words"),
    [
        ({"model": "three"}, 404, "model", "Use one of base, one, two, whole."),
        ({"temperature": -1}, 400, "temperature", "greater than or equal to 0"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, 400, "prompt", "the context of base is 512"),
        ({"max_tokens": 5000}, 400, "max_tokens", "Give at most"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "messages", "only text"),
        ({"chat_template_kwargs": {"tokenize": True}}, 400, "chat_template_kwargs", "set by the server"),
        ({"frequency_penalty": 0.5}, 400, "frequency_penalty", "0"),
    ],
)
def test_a_request_that_cannot_be_answered_names_field_value_and_fix(client, fields, status, field, words):
    answer = ask(client, **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (status, field, status)
    assert words in error["message"]
    assert error["fix"]


def test_every_route_needs_the_token(client):
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/chat/completions"), ("GET", "/health")):
        assert client.request(method, path, headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_a_cancelled_request_ends_and_the_next_one_is_answered(client, served):
    from training.serving.generation import Generator, Job, Sampling

    seen, generator = [], Generator()
    job = Job(served["base"], [3, 76], Sampling(max_tokens=400, temperature=1, seed=0), seen.append)
    job.emit = lambda item: (seen.append(item), job.cancelled.set())
    generator.add(job)
    while generator.pending:
        pass
    assert len(seen) == 2  # one token and the end
    assert ask(client).status_code == 200


def test_an_encoder_decoder_answers_plain_text_as_when_loaded_alone(folders):
    import torch
    from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

    from training.serving.loaded import Base, load
    from training.serving.web import Api

    tokenizer = AutoTokenizer.from_pretrained(folders / "base")
    tokenizer.chat_template = None
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    torch.manual_seed(1)
    config = T5Config(vocab_size=len(tokenizer), **sizes, decoder_start_token_id=0, pad_token_id=0, eos_token_id=1)
    folder = folders / "t5"
    model = T5ForConditionalGeneration(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    with TestClient(Api(load(Base(str(folder), "t5"), {}, {}, {}), "").app()) as client:
        body = {"model": "t5", "prompt": "Höhe 3", "temperature": 0, "max_tokens": 6, "return_token_ids": True}
        choice = client.post("/v1/completions", json=body).json()["choices"][0]
        refused = ask(client, model="t5").json()["error"]
    ids = torch.tensor([choice["prompt_token_ids"]])
    generated = model.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=6)
    assert generated[0, 1:].tolist() == choice["token_ids"]
    assert "has no chat template" in refused["message"]
    assert "plain text" in refused["fix"]
