"""Served models for tests: a base and two adapters on it, the application that answers for them, and requests to it."""

import json

from tiny import make_model

MESSAGES = [{"role": "system", "content": "Count."}, {"role": "user", "content": "Höhe 3"}]
TOKEN = "of the test"


def make_folders(folder):
    """Makes a base model, and two adapters on it whose weights are random."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

    model = make_model(folder / "base")
    for seed, name in enumerate(("one", "two")):
        torch.manual_seed(seed)
        lora = LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
        get_peft_model(AutoModelForCausalLM.from_pretrained(model), lora).save_pretrained(folder / name)
        AutoTokenizer.from_pretrained(model).save_pretrained(folder / name)
        GenerationConfig(eos_token_id=[1]).save_pretrained(folder / name)
    return folder


def application(served, token=""):
    """Their application; its state has the Api."""
    from training.serving.generation import generate
    from training.serving.jobs import Generator
    from training.serving.web import Api

    api = Api(served, Generator(generate), token)
    app = api.app()
    app.state.api = api
    return app


def ask(client, **fields):
    body = {"model": "base", "messages": MESSAGES, "temperature": 0, "max_tokens": 6, "return_token_ids": True} | fields
    return client.post("/v1/chat/completions", json=body)


def chunks(answer):
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]
