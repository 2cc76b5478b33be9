"""The snippets of a finished run work as they are: python against a real run, shell by its syntax."""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from played_run import PlayedRun
from tiny import make_data, make_model
from trainer_process import train_here

from app.documents.results.outputs import used_by_snippets
from app.documents.results.snippets import Snippet, Used, snippets
from training.config.choices import Method
from training.config.run_config import RunConfig
from worker.settings import get_settings
from worker.store import database, runs
from worker.store.tables import Dataset

pytestmark = [
    pytest.mark.train,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]
SHORT = {"verify_rows": 1, "max_steps": 1, "eval_steps": 0, "eval_split": 4, "max_new_tokens": 3}
CHAT = [
    {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}!"}]} for n in range(40)
]
CLASSES = [{"text": f"text {n}", "label": ("good", "bad")[n % 2]} for n in range(40)]
PAIRS = [{"prompt": f"{n}?", "chosen": "yes", "rejected": "no"} for n in range(40)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "tiny-llama")


def finished(data: Path, model: Path, shape: str, **settings: Any) -> list[Snippet]:
    """The snippets of a real run that is stored as finished."""
    played = PlayedRun("My first run", model=str(model), data=str(data), **(SHORT | settings)).claim()
    trained = train_here(get_settings().runs_dir / played.id, model, data, **(SHORT | settings))
    played.end(summary=trained.summary)
    sample = [json.loads(line) for line in data.read_text().splitlines()[:3]]
    with database.write() as session:
        facts = {"name": data.name, "format": "jsonl", "rows": 40, "bytes": 1, "created_at": 0.0}
        session.add(Dataset(id=played.id, sha256=played.id, shape=shape, sample=sample, **facts))
        runs.get(session=session, run_id=played.id).dataset_id = played.id
    with database.read() as session:
        used = used_by_snippets(session, runs.get(session=session, run_id=played.id))
    assert used
    return snippets(used)


def written(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def printed(snippet: Snippet) -> str:
    """What the snippet prints. It runs in this process, which has imported the libraries: importing them takes the longest."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(compile(snippet.text, snippet.program, "exec"), {"__name__": "__main__"})
    return output.getvalue()


def printed_alone(snippet: Snippet) -> str:
    """What the snippet prints as a program of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", snippet.text],
        capture_output=True,
        text=True,
        env=os.environ | {"HF_HUB_OFFLINE": "1"},
        check=False,
    )
    assert done.returncode == 0, f"{snippet.text}\n{done.stderr[-3000:]}"
    return done.stdout


def of(found: list[Snippet], program: str) -> Snippet:
    return next(one for one in found if one.program == program)


def test_an_adapter_of_chats_answers_in_peft_and_transformers_alike(home: Path, tmp_path: Path, model: Path) -> None:
    found = finished(written(tmp_path / "chat.jsonl", CHAT), model, "messages", learning_rate=0.05)
    assert "apply_chat_template" in of(found, "peft").text
    assert printed(of(found, "peft")) == printed_alone(of(found, "transformers")) != ""
    assert "chat/completions" in of(found, "vLLM").text
    assert "--chat-template" not in of(found, "vLLM").text  # the base model has the same template
    assert "<|user|>{{ .Content }}<|end|>" in of(found, "Ollama").text


def test_plain_prompts_get_no_chat_template(home: Path, tmp_path: Path, model: Path) -> None:
    found = finished(make_data(tmp_path / "rows.jsonl"), model, "prompt/completion", merge_adapter=True)
    assert "apply_chat_template" not in of(found, "peft").text
    assert 'TEMPLATE """{{ .Prompt }}"""' in of(found, "Ollama").text
    assert "/merged" in of(found, "transformers").text
    assert printed(of(found, "transformers")) == printed(of(found, "peft"))


@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_a_quantized_base_model_is_quantized_again(home: Path, tmp_path: Path, model: Path) -> None:
    found = finished(make_data(tmp_path / "rows.jsonl"), model, "prompt/completion", method="qlora")
    assert "load_in_4bit=True" in of(found, "peft").text
    assert "--quantization bitsandbytes" in of(found, "vLLM").text
    printed(of(found, "peft"))


def test_a_classifier_prints_a_class(home: Path, tmp_path: Path, model: Path) -> None:
    found = finished(written(tmp_path / "rows.jsonl", CLASSES), model, "text/label", task="classification")
    assert {one.program for one in found} == {"peft", "transformers"}
    answer = printed_alone(of(found, "peft"))
    assert answer.strip() in ("good", "bad")
    assert printed(of(found, "transformers")) == answer


def test_a_reward_model_prints_a_score(home: Path, tmp_path: Path, model: Path) -> None:
    found = finished(written(tmp_path / "rows.jsonl", PAIRS), model, "preference", task="reward")
    assert "tensor([" in printed(of(found, "peft"))


def test_a_model_after_full_fine_tuning_needs_no_peft(home: Path, tmp_path: Path, model: Path) -> None:
    found = finished(written(tmp_path / "chat.jsonl", CHAT), model, "messages", method="full")
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
