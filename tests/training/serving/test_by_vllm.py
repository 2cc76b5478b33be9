"""The serving program by the stand-in for vLLM: the same prompts, answers and streams as by transformers, and its end."""

import json
import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest
import vllm_program as vllm
import warm
from paths import ROOT
from patience import eventually
from served import TOKEN, application, ask, chunks, make_folders
from starlette.testclient import TestClient

from training.errors import UserError
from training.run_folder.paths import RUN_VARIABLE, VLLM_VARIABLE
from training.vllm.limits import NotLoaded
from worker.machine import processes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return make_folders(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def clients(folders, tmp_path_factory):
    """The same models by transformers and by vLLM."""
    from training.serving.by_vllm import load as load_by_vllm
    from training.serving.loaded import Base, load
    from training.serving.web import Api

    base, adapters = Base(str(folders / "base"), "base"), {name: folders / name for name in ("one", "two")}
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with ExitStack() as running, pytest.MonkeyPatch.context() as patch:
        vllm.use(patch, tmp_path_factory.mktemp("vllm"))
        served, generator, _ = load_by_vllm(base, adapters, {}, {}, running)
        apps = application(load(base, adapters, {}, {}), TOKEN), Api(served, generator, TOKEN).app()
        yield [running.enter_context(TestClient(app, headers=headers)) for app in apps]


def both(clients, **fields):
    """The choices of both, which have no ids and times of their own."""
    return [ask(client, **fields).json()["choices"] for client in clients]


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model": "one"},
        {"model": "two", "max_tokens": 20},
        {"model": "one", "repetition_penalty": 1.5},
        {"model": "two", "min_tokens": 4, "ignore_eos": True},
    ],
    ids=str,
)
def test_base_and_adapters_answer_as_by_transformers(clients, fields):
    by_transformers, by_vllm = both(clients, **fields)
    assert by_vllm == by_transformers


def test_a_stop_string_ends_an_answer_at_the_same_place(clients):
    text = ask(clients[0], model="one", max_tokens=12).json()["choices"][0]["message"]["content"]
    by_transformers, by_vllm = both(clients, model="one", max_tokens=12, stop=[text[3:5]])
    assert by_vllm == by_transformers
    assert by_vllm[0]["finish_reason"] == "stop"


def test_log_probabilities_and_alternatives_are_the_model_s_own(clients):
    by_transformers, by_vllm = both(clients, model="one", logprobs=True, top_logprobs=3)
    for expected, found in zip(
        by_transformers[0]["logprobs"]["content"], by_vllm[0]["logprobs"]["content"], strict=True
    ):
        assert found["token"] == expected["token"]
        assert found["logprob"] == pytest.approx(expected["logprob"], abs=1e-5)
        assert [one["token"] for one in found["top_logprobs"]] == [one["token"] for one in expected["top_logprobs"]]


def test_a_stream_has_the_same_chunks(clients):
    by_transformers, by_vllm = (
        [chunk["choices"] for chunk in chunks(ask(client, model="two", stream=True))] for client in clients
    )
    assert by_vllm == by_transformers


def test_models_and_their_context_are_those_of_the_server(clients):
    by_transformers, by_vllm = (client.get("/v1/models").json() for client in clients)
    assert by_vllm == by_transformers


def test_sampling_and_its_seed_reach_the_server(clients):
    def sampled(seed):
        return ask(clients[1], temperature=2.0, seed=seed).json()["choices"][0]["token_ids"]

    assert sampled(1) == sampled(1) != sampled(2)


def test_two_whole_models_are_refused_with_the_reason(folders):
    from training.serving.by_vllm import load
    from training.serving.loaded import Base

    with pytest.raises(NotLoaded, match="one whole model"), ExitStack() as running:
        load(Base(str(folders / "base"), "base"), {}, {"whole": folders / "base"}, {}, running)


def test_an_adapter_with_nan_is_refused_as_without_vllm(folders, tmp_path):
    import shutil

    import torch
    from safetensors.torch import load_file, save_file

    from training.serving.by_vllm import load
    from training.serving.loaded import Base

    folder = tmp_path / "broken"
    shutil.copytree(folders / "one", folder)
    weights = load_file(folder / "adapter_model.safetensors")
    weights[next(iter(weights))][0, 0] = torch.nan
    save_file(weights, folder / "adapter_model.safetensors")
    with pytest.raises(UserError, match="NaN or infinity in 1 of 8 weights"), ExitStack() as running:
        load(Base(str(folders / "base"), "base"), {"broken": folder}, {}, {}, running)


def serve(folder, given, *arguments):
    """The program, as a worker starts it; what it prints goes to a file."""
    script = vllm.install(folder)
    env = os.environ | {"PYTHONPATH": warm.PYTHONPATH, VLLM_VARIABLE: str(script), RUN_VARIABLE: folder.name}
    with (folder / "out").open("wb") as output, (folder / "err").open("wb") as errors:
        argv = [str(warm.python()), "-c", PROGRAM, *arguments]
        return subprocess.Popen(argv, env=env | given, cwd=ROOT, stdout=output, stderr=errors)


# A fork cannot become another program without its launcher's notice, as the process that becomes vLLM does.
PROGRAM = (
    f"import runpy, sys; sys.executable = {sys.executable!r}; "
    "runpy.run_module('training.serving', run_name='__main__', alter_sys=True)"
)


def printed(folder):
    lines = (folder / "out").read_text().splitlines()
    return json.loads(lines[-1]) if lines else {}


def test_when_vllm_dies_the_program_ends_with_the_reason(folders, tmp_path):
    process = serve(tmp_path, {}, str(folders / "base"), "--model-name", "base", f"--adapter=one={folders / 'one'}")
    try:
        assert eventually(lambda: printed(tmp_path), every=0.2)["models"] == ["base", "one"]
        marked = processes.marked(RUN_VARIABLE, tmp_path.name)
        (server,) = (one for one in marked if "stand_in_vllm.py" in " ".join(one.cmdline()))
        server.send_signal(signal.SIGKILL)
        eventually(lambda: process.poll() is not None, every=0.2)
        assert process.returncode == 1
        assert "signal 9 (SIGKILL)" in printed(tmp_path)["error"]["message"]
    finally:
        process.kill()
        process.wait()


def test_a_server_that_fails_at_its_start_leaves_the_answers_to_transformers_and_says_so(folders, tmp_path):
    process = serve(tmp_path, {"STAND_IN_VLLM": "memory"}, str(folders / "base"), "--model-name", "base")
    try:
        ready = eventually(lambda: printed(tmp_path), every=0.2)
        assert ready["models"] == ["base"]
        assert "transformers answers: vllm" in ready["note"]
        assert "Free memory on device cuda:0" in ready["note"]
    finally:
        process.kill()
        process.wait()
