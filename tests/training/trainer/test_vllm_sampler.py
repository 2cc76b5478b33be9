"""Samples that vLLM draws for grpo and distill: its stand-in loads the weights that are trained, and what goes wrong is named."""

import json
import os
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import vllm_program as vllm
from patience import eventually
from peft import LoraConfig, get_peft_model
from tiny import make_model
from trainer_process import Trained, start, train_here
from transformers import AutoModelForCausalLM

from training.config.machine import Machine
from training.config.run_config import RunConfig
from training.forecast.step_down import next_rung_after
from training.run_folder.events import Metrics, OutOfMemory
from training.run_folder.paths import checkpoint_dir, sampler_dir
from training.trainer import vllm_sampler
from training.trainer.vllm_sampler import OtherSampler
from training.vllm import server as server_module
from training.vllm.client import VllmError
from training.vllm.limits import NotLoaded

pytestmark = [pytest.mark.train, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]
STEPS, LONGEST = 3, 6
CODE = "def letters(prompt, answer, expected):\n    return len(set(answer)) / 10\n"
SETTINGS: dict[str, Any] = {
    "task": "grpo", "rewards": "letters", "reward_code": CODE, "num_generations": 4, "max_completion_length": LONGEST,
    "max_steps": STEPS, "epochs": 1, "precision": "fp32", "learning_rate": 0.5, "lr_scheduler": "constant", "optimizer": "sgd",
    "momentum": 0.0, "method": "lora", "target_modules": "all-linear", "lora_r": 4, "answer_rows": 0, "eval_steps": 0,
    "eval_split": 0, "max_length": 40, "micro_batch_size": 8, "baseline_prompts": 0, "generation": "vllm", "lora_init": "gaussian",
}  # fmt: skip


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("vllm")
    make_model(home / "model")
    rows = [{"prompt": f"say {'ab' * (number % 3)}{number}: ", "completion": "abc"[number % 3]} for number in range(8)]
    (home / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return home


def trained(tmp_path: Path, home: Path, **settings: Any) -> Trained:
    return train_here(tmp_path / "run", home / "model", home / "rows.jsonl", **SETTINGS | settings)


def url_of(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


@pytest.fixture
def server(tmp_path: Path, home: Path) -> Iterator[Callable[..., str]]:
    """Starts somebody's server of a model, and returns its address when it answers."""
    running: list[subprocess.Popen[bytes]] = []

    def started(model: Path = home / "model", wrong: str = "") -> str:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        argv = [str(vllm.install(tmp_path)), "serve", str(model), "--port", str(port), "--generation-config", "vllm", "--dtype",
                "float32", "--served-model-name", "theirs", "--max-model-len", "128", "--enable-lora"]  # fmt: skip
        env = os.environ | {"STAND_IN_VLLM": wrong, "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
        running.append(subprocess.Popen(argv, env=env))
        eventually(lambda: answers(port), running)
        return url_of(port)

    yield started
    for process in running:
        process.kill()
        process.wait()


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health").is_success
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("settings", [{}, {"temperature": 0.7, "num_iterations": 2}], ids=str)
def test_samples_have_the_log_probabilities_of_the_weights_of_their_step(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    vllm.use(monkeypatch, tmp_path)
    run = trained(tmp_path, home, baseline_prompts=2, eval_steps=1, eval_split=2, **settings)
    assert max(run.series("sampler_difference").values()) < 1e-4
    assert list(run.series("sampler_ratio").values()) == pytest.approx([1] * len(run.losses()), abs=1e-4)
    assert run.losses() and len(run.series("eval_reward")) == STEPS
    assert not sampler_dir(tmp_path / "run").exists()


def test_a_new_adapter_is_loaded_for_each_step_and_vllm_sleeps_between(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.use(monkeypatch, tmp_path)
    monkeypatch.setenv("STAND_IN_VLLM_LOG", str(tmp_path / "log"))
    monkeypatch.setattr(vllm_sampler, "can_sleep", lambda device: True)
    trained(tmp_path, home, max_steps=2)
    first, *others = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert first == ["/v1/load_lora_adapter", "run-0-0"]
    assert others == [
        ["/sleep"], ["/wake_up"], ["/v1/unload_lora_adapter", "run-0-0"], ["/v1/load_lora_adapter", "run-1-0"], ["/sleep"],
    ]  # fmt: skip


def test_a_server_of_somebody_else_draws_the_samples_of_two_ranks(
    tmp_path: Path, home: Path, server: Callable[..., str]
) -> None:
    url, left = server(), adapter_of(home, tmp_path)  # by a killed attempt
    assert httpx.post(f"{url}/load_lora_adapter", json={"lora_name": "run-1", "lora_path": str(left)}).is_success
    settings = SETTINGS | {"vllm_url": url, "strategy": "ddp", "num_processes": 2, "micro_batch_size": 4}
    run = start(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    assert run.finish() == 0, run.log()
    assert len(run.losses()) == STEPS and max(run.series("sampler_difference").values()) < 1e-4
    assert [model["id"] for model in httpx.get(f"{url}/models").json()["data"]] == ["theirs"]


def adapter_of(home: Path, folder: Path) -> Path:
    base = AutoModelForCausalLM.from_pretrained(home / "model")
    get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj"])).save_pretrained(folder / "left")
    return folder / "left"


@pytest.mark.parametrize("strategy", ["fsdp", pytest.param("zero3", marks=pytest.mark.nightly)])
def test_each_rank_has_a_vllm_with_the_whole_adapter_that_the_ranks_divide(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    vllm.use(monkeypatch, tmp_path)
    settings = SETTINGS | {"strategy": strategy, "num_processes": 2, "micro_batch_size": 4, "max_steps": 2}
    run = start(tmp_path / "run", home / "model", home / "rows.jsonl", **settings)
    assert run.finish() == 0, run.log()
    assert len(run.losses()) == 2 and max(run.series("sampler_difference").values()) < 1e-4


def test_distillation_learns_from_samples_of_vllm(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm.use(monkeypatch, tmp_path)
    settings = {
        "task": "distill",
        "teacher": str(home / "model"),
        "eval_steps": 1,
        "eval_split": 2,
        "baseline_prompts": 4,
    }
    run = trained(tmp_path, home, **settings)
    assert max(run.series("sampler_difference").values()) < 1e-4
    assert len(run.losses()) == len(run.evaluations()) == STEPS


def test_a_run_that_stops_between_two_steps_on_samples_of_vllm_resumes_with_them(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.use(monkeypatch, tmp_path)
    settings = {"num_iterations": 2, "max_steps": 2, "save_steps": 1, "save_total_limit": 5}
    whole = trained(tmp_path, home, **settings)
    shutil.rmtree(checkpoint_dir(tmp_path / "run", 2))
    before = whole.losses()[2]
    resumed = trained(tmp_path, home, **settings)
    taken = [event.values["loss"] for event in resumed.of(Metrics) if "loss" in event.values]
    assert len(taken) == 3 and taken[2] == pytest.approx(before, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ("stale", OtherSampler, "does not have the weights of the trainer"),
        ("tokens", OtherSampler, "returned other tokens than it got"),
        ("rank", VllmError, "LoRA rank 4 is greater"),
        ("dies", VllmError, "signal 9 (SIGKILL)"),
        ("hangs", VllmError, "did not answer in time"),
    ],
)
def test_what_goes_wrong_in_vllm_ends_the_run_with_its_cause_and_a_fix(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch, wrong: str, error: type[Exception], words: str
) -> None:
    vllm.use(monkeypatch, tmp_path, wrong)
    monkeypatch.setattr(vllm_sampler, "_SECONDS", 2.0 if wrong == "hangs" else 120.0)
    monkeypatch.setattr(server_module, "_END_SECONDS", 10.0 if wrong == "dies" else 0.5)
    with pytest.raises(error) as failure:
        trained(tmp_path, home)
    assert words in str(failure.value) and "Set generation to model" in str(failure.value)


def test_a_vllm_that_finds_too_little_memory_gets_a_smaller_share(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vllm.use(monkeypatch, tmp_path, "memory")
    with pytest.raises(NotLoaded):
        trained(tmp_path, home)
    run = Trained(tmp_path / "run", None)
    run.read()
    (report,) = run.of(OutOfMemory)
    ran_with = RunConfig.model_validate(SETTINGS | {"model": str(home / "model"), "data": "d"})
    assert next_rung_after(report, ran_with, Machine(), has_checkpoint=False) == {"vllm_memory": 0.15}


def test_a_server_of_another_model_is_named(tmp_path: Path, home: Path, server: Callable[..., str]) -> None:
    other = AutoModelForCausalLM.from_pretrained(home / "model")
    torch.nn.init.normal_(other.lm_head.weight)
    other.save_pretrained(tmp_path / "other")
    with pytest.raises(OtherSampler, match=r"vllm_url.*does not have the weights of the trainer.*Check that it serves"):
        trained(tmp_path, home, vllm_url=server(tmp_path / "other"))


def test_a_server_that_does_not_see_the_run_s_folder_is_told_so(
    tmp_path: Path, home: Path, server: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vllm_sampler.VllmSampler, "_load_from", elsewhere(vllm_sampler.VllmSampler._load_from))
    with pytest.raises(VllmError, match=r"did not load the adapter.*No adapter found.*under the same path"):
        trained(tmp_path, home, vllm_url=server())


def elsewhere(load: Any) -> Any:
    return lambda sampler, folder, name: load(sampler, Path("/on/another/machine") / folder.name, name)


def test_a_server_that_is_not_there_is_named(tmp_path: Path, home: Path) -> None:
    with pytest.raises(VllmError, match=r"vllm_url.*127.0.0.1:9/v1.*does not answer"):
        trained(tmp_path, home, vllm_url=url_of(9))
