"""The snippets of a finished run work as they are: python against a real run, shell by its syntax."""

import json
import os
import shlex
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import patience
import pytest
import warm
from played_run import PlayedRun
from trained import Recipe, copy_of, trained

from app.documents.results.outputs import used_by_snippets
from app.format.snippets import Snippet, Used, snippets
from training.config.choices import Method
from training.config.run_config import RunConfig
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Dataset

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
PYTHON = sys.executable
SHORT = {"verify_rows": 1, "max_steps": 1, "eval_steps": 0, "eval_split": 4, "max_new_tokens": 3}


@pytest.fixture(autouse=True)
def warm_python(monkeypatch: pytest.MonkeyPatch) -> None:
    warm.use_python(monkeypatch)


def finished(data: str, row_format: str, **settings: Any) -> list[Snippet]:
    """The snippets of a real run that is stored as finished."""
    recipe = Recipe("llama", data, SHORT | settings)
    model, file = recipe.inputs
    played = PlayedRun("My first run", model=str(model), data=str(file), **recipe.settings).claim()
    copy_of(recipe, get_settings().runs_dir / played.id)
    played.end(summary=trained(recipe).summary)
    sample = [json.loads(line) for line in file.read_text().splitlines()[:3]]
    with database.write() as session:
        facts = {"name": file.name, "format": "jsonl", "rows": 40, "bytes": 1, "created_at": 0.0}
        session.add(Dataset(id=played.id, sha256=played.id, row_format=row_format, sample=sample, **facts))
        runs.get(session=session, run_id=played.id).dataset_id = played.id
    with database.read() as session:
        used = used_by_snippets(session, runs.get(session=session, run_id=played.id))
    assert used
    return snippets(used)


def printed(snippet: Snippet, python: str | None = None) -> str:
    """What the snippet prints as a program of its own."""
    env = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = patience.run([python or sys.executable, "-W", "ignore", "-c", snippet.text], text=True, env=env)
    assert done.returncode == 0, f"{snippet.text}\n{done.stderr[-3000:]}"
    return str(done.stdout)


def of(found: list[Snippet], program: str) -> Snippet:
    return next(one for one in found if one.program == program)


def test_an_adapter_of_chats_answers_in_peft_and_transformers_alike(home: Path) -> None:
    found = finished("chats", "messages", learning_rate=0.05)
    assert "apply_chat_template" in of(found, "peft").text
    assert printed(of(found, "peft")) == printed(of(found, "transformers")) != ""
    assert "chat/completions" in of(found, "vLLM").text
    assert "--chat-template" not in of(found, "vLLM").text  # the base model has the same template
    assert "<|user|>{{ .Content }}<|end|>" in of(found, "Ollama").text


@pytest.mark.nightly
def test_a_snippet_runs_in_an_interpreter_that_has_imported_nothing(home: Path) -> None:
    snippet = of(finished("chats", "messages", learning_rate=0.05), "transformers")
    assert printed(snippet, PYTHON) == printed(snippet)


def test_plain_prompts_get_no_chat_template(home: Path) -> None:
    found = finished("counting", "prompt/completion", merge_adapter=True)
    assert "apply_chat_template" not in of(found, "peft").text
    assert 'TEMPLATE """{{ .Prompt }}"""' in of(found, "Ollama").text
    assert "/merged" in of(found, "transformers").text
    assert printed(of(found, "transformers")) == printed(of(found, "peft"))


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_a_quantized_base_model_is_quantized_again(home: Path) -> None:
    found = finished("counting", "prompt/completion", method="qlora")
    assert "load_in_4bit=True" in of(found, "peft").text
    assert "--quantization bitsandbytes" in of(found, "vLLM").text
    printed(of(found, "peft"))


def test_a_classifier_prints_a_class(home: Path) -> None:
    found = finished("classes", "text/label", task="classification")
    assert {one.program for one in found} == {"peft", "transformers"}
    answer = printed(of(found, "peft"))
    assert answer.strip() in ("good", "bad")
    assert printed(of(found, "transformers")) == answer


def test_a_reward_model_prints_a_score(home: Path) -> None:
    found = finished("pairs", "preference", task="reward")
    assert 'Fine." + (tokenizer.eos_token or "")' in of(found, "peft").text  # answers end with it in training
    assert "tensor([" in printed(of(found, "peft"))


def test_a_model_after_full_fine_tuning_needs_no_peft(home: Path) -> None:
    found = finished("chats", "messages", method="full")
    assert {one.program for one in found} == {"transformers", "vLLM", "llama.cpp", "Ollama"}
    printed(of(found, "transformers"))
    assert "lora" not in of(found, "vLLM").text


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"lora_r": 20}, ["--enable-lora", "--max-lora-rank 32", "--lora-modules 'my-run-"]),
        ({"use_dora": True}, ["--merged --to my-run-", "vllm serve ./my-run-"]),
        ({"method": "full"}, ["--served-model-name my-run-"]),
        ({"chat_template_kwargs": "enable_thinking=false"}, ['"chat_template_kwargs": {"enable_thinking": false}']),
        ({"model": "folder with spaces/it's"}, ["--enable-lora"]),
    ],
)
def test_shell_snippets_have_valid_syntax_and_json(settings: dict[str, Any], words: list[str]) -> None:
    config = RunConfig.model_validate({"model": "Qwen/Qwen3-0.6B", "data": "d"} | settings)
    used = Used("run0123456789", "My run", config, "/data/runs/it's/adapter", chats=True)
    for snippet in (one for one in snippets(used) if one.language == "sh"):
        subprocess.run(["bash", "-n"], input=snippet.text, text=True, check=True)
    vllm = of(snippets(used), "vLLM").text
    for word in words:
        assert word in vllm
    body = shlex.split(vllm.splitlines()[-1])[-1]
    assert json.loads(body)["messages"] == [{"role": "user", "content": "Hello"}]


def test_a_result_that_cannot_be_merged_has_no_snippets_of_servers() -> None:
    config = RunConfig(model="m", data="d", method=Method.PROMPT_TUNING)
    used = Used("run0123456789", "My run", config, "/data/adapter", mergeable=False)
    assert [one.program for one in snippets(used)] == ["peft", "transformers"]
