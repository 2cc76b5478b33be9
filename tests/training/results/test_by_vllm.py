"""Answers of the stand-in for vLLM against those of transformers, and what goes wrong in its process."""

import os

import pytest
import vllm_program as vllm
from tiny import make_model

from training.config.run_config import RunConfig
from training.errors import UserError
from training.results.by_vllm import answers
from training.trainer.answering import Question
from training.vllm.client import VllmError
from training.vllm.limits import Models, NotLoaded
from training.vllm.server import options, serving

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]
PROMPTS = ("count 1: ", "abc", "Höhe 3, and a longer prompt than the others have")
LONGEST = 8


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A base model, a LoRA adapter on it and one with DoRA, and another whole model."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("models")
    make_model(folder / "base")
    for seed, name in enumerate(("lora", "dora")):
        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(folder / "base")
        lora = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, use_dora=name == "dora")
        get_peft_model(base, lora).save_pretrained(folder / name)
    torch.manual_seed(2)
    other = AutoModelForCausalLM.from_pretrained(folder / "base")
    torch.nn.init.normal_(other.lm_head.weight)
    other.save_pretrained(folder / "full")
    return folder


@pytest.fixture
def tokenizer(folders):
    from training.models.loading import load_tokenizer

    return load_tokenizer(RunConfig(model=str(folders / "base"), data="d"))


@pytest.fixture
def asked(tokenizer):
    return [Question(row, text, tokenizer(text)["input_ids"], "a b c") for row, text in enumerate(PROMPTS)]


def compared(folders, name, asked, tokenizer):
    """The summary and rows of a finished run's held-out answers, and the warnings."""
    import torch

    from training.results.answers import Compared, compare

    method = "full" if name == "full" else "lora"
    config = RunConfig(model=str(folders / "base"), data="d", method=method, max_new_tokens=LONGEST)
    told, item = [], Compared(asked, config, folders / name, tokenizer, torch.float32)
    summary, rows = compare(item, torch.device("cpu"), lambda done, total: None, told.append)
    return summary | {"card": summary["card"] | {"engine": ""}}, rows, told


@pytest.mark.parametrize("name", ["lora", "full"])
def test_held_out_answers_after_training_are_those_of_transformers(
    folders, asked, tokenizer, monkeypatch, tmp_path, name
):
    expected = compared(folders, name, asked, tokenizer)
    vllm.use(monkeypatch, tmp_path)
    assert compared(folders, name, asked, tokenizer) == expected
    before, after = ([row[when] for row in expected[1]] for when in ("before", "after"))
    assert before != after


@pytest.mark.parametrize("wrong", ["", "memory", "rank", "dies"])
def test_after_training_transformers_answers_where_vllm_does_not_and_a_warning_says_why(
    folders, asked, tokenizer, monkeypatch, tmp_path, wrong
):
    name = "lora" if wrong else "dora"
    *expected, _ = compared(folders, name, asked, tokenizer)
    vllm.use(monkeypatch, tmp_path, wrong)
    *found, (warning,) = compared(folders, name, asked, tokenizer)
    assert found == expected
    words = {
        "": "the adapter uses DoRA",
        "memory": "exit code 1, ValueError: Free memory on device cuda:0 (1.2/80.0 GiB) on startup is less than desired.",
        "rank": "exit code 1, ValueError: LoRA rank 4 is greater than max_lora_rank 8.",
        "dies": "ended: signal 9 (SIGKILL).",
    }[wrong]
    assert words in warning


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("dies", ("signal 9 (SIGKILL)", "output")),
        ("context", ("status 400", "maximum context length", "max_new_tokens")),
    ],
)
def test_a_server_that_dies_or_refuses_an_answer_is_named_with_a_cure(
    folders, asked, tokenizer, monkeypatch, tmp_path, wrong, words
):
    vllm.use(monkeypatch, tmp_path, wrong)
    with pytest.raises(VllmError) as failure:
        answers(Models(str(folders / "base")), ["base"], asked, tokenizer, LONGEST, lambda count: None)
    assert all(word in str(failure.value) for word in words)


def test_a_row_that_exceeds_the_context_is_named_before_anything_starts(folders, asked, tokenizer, monkeypatch):
    monkeypatch.setenv("LATHE_VLLM_COMMAND", "false")
    with pytest.raises(NotLoaded) as failure:
        answers(Models(str(folders / "base")), ["base"], asked, tokenizer, 500, lambda count: None)
    tokens = len(asked[2].tokens)
    assert f"row 3: its prompt of {tokens} tokens and an answer of 500 exceed the model's context of 512" in str(
        failure.value
    )
    assert f"Lower max_new_tokens by {tokens + 500 - 512}." in str(failure.value)


def test_a_missing_program_is_named(monkeypatch):
    monkeypatch.setenv("LATHE_VLLM_COMMAND", "/no/vllm")
    with pytest.raises(NotLoaded, match=r"LATHE_VLLM_COMMAND.*/no/vllm.*is not a program"), serving(Models("m"), 8):
        pass


def test_a_process_that_is_given_up_while_it_loads_ends_with_its_own_processes(monkeypatch, tmp_path):
    import psutil
    from patience import eventually

    script = tmp_path / "vllm"
    script.write_text(
        "#!/bin/sh\nsleep 1000 &\n"
        'echo $! "$VLLM_NO_USAGE_STATS" "$LATHE_RUN" "$LATHE_TOKEN" "$TORCHELASTIC_USE_AGENT_STORE" "$LOCAL_RANK" '
        f"> {tmp_path}/child\nwait\n"
    )
    script.chmod(0o700)
    monkeypatch.setenv("LATHE_VLLM_COMMAND", str(script))
    monkeypatch.setenv("LATHE_TOKEN", "secret")
    monkeypatch.setenv("LATHE_RUN", "marked")
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", "True")  # as torchrun does
    monkeypatch.setenv("LOCAL_RANK", "0")

    def waiting():
        if (tmp_path / "child").exists() and (tmp_path / "child").read_text():
            raise UserError("run", "a run", "is stopped.")

    with pytest.raises(UserError, match="is stopped"), serving(Models("m"), 8, waiting):
        pass
    pid, *given = (tmp_path / "child").read_text().split()
    assert given == ["1", "marked"]  # it gets no secret of Lathe's, and no store of torchrun's
    eventually(lambda: not psutil.pid_exists(int(pid)) or psutil.Process(int(pid)).status() == psutil.STATUS_ZOMBIE)


def test_the_options_name_the_adapters_and_the_rank(folders, tmp_path):
    found = options(
        Models("m", "RUN:base", "v1", "bfloat16", adapters={"RUN": folders / "lora"}), 96, tmp_path / "socket"
    )
    text = " ".join(found)
    assert "serve m --revision v1 --served-model-name RUN:base --dtype bfloat16 --max-model-len 96" in text
    assert "--enable-lora --max-loras 1 --max-lora-rank 8 --lora-modules" in text
    assert f'{{"name": "RUN", "path": "{folders / "lora"}"}}' in found
    assert os.fspath(tmp_path / "socket") in found
