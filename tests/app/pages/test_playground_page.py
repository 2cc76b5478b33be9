"""The page Playground in Chromium, with the real serving process."""

import json
import os
import shutil
import signal
import threading

import numpy as np
import pytest
from paths import ROOT
from played_run import PlayedRun
from run_files import folder_of
from safetensors.numpy import save_file
from sqlmodel import delete
from supervised import eventually
from web import IN_BROWSER, says

from worker.serving import processes
from worker.store import database
from worker.store.playground import serving
from worker.store.tables import PromptSet, ServedModel, Status

LOADING = 240_000  # milliseconds: a busy machine imports torch in more than a minute
pytestmark = IN_BROWSER
STARTER = ROOT / "static" / "starter"


@pytest.fixture
def worker(page):
    """A worker's rounds for served models; its processes end with the test."""
    with database.write() as session:
        session.exec(delete(ServedModel))
        session.exec(delete(PromptSet))
    ended = threading.Event()

    def rounds():
        while not ended.wait(0.1):
            processes.start_waiting()

    thread = threading.Thread(target=rounds)
    thread.start()
    yield
    ended.set()
    thread.join()
    with database.write() as session:
        for one in serving.live(session=session):
            serving.request_end(session=session, served_id=one.id, reason="The test ends.")
    processes.wait_for_ends()


def adapter(run_id):
    """A LoRA adapter on the starter model with large random weights."""
    sizes = json.loads((STARTER / "config.json").read_text())
    hidden, random = sizes["hidden_size"], np.random.default_rng(0)
    folder = folder_of(run_id) / "adapter"
    folder.mkdir(parents=True)
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_{}.weight"
    out = sizes["num_attention_heads"] * sizes.get("head_dim", hidden // sizes["num_attention_heads"])
    shapes = {"A": (4, hidden), "B": (out, 4)}
    weights = {key.format(name): random.normal(0, 3, shape).astype(np.float32) for name, shape in shapes.items()}
    save_file(weights, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        shutil.copy(STARTER / name, folder)


def finished_run():
    run = PlayedRun("orders", model=str(STARTER)).claim()
    run.end()
    adapter(run.id)
    return run


def said(page, model):
    return page.locator(f'.answer[data-model="{model}"]')


def test_base_and_adapter_answer_side_by_side_while_a_run_trains_and_a_killed_process_is_named(page, worker):
    run, training = finished_run(), PlayedRun("training", model=str(STARTER)).claim()
    page.goto(f"/playground?run={run.id}")
    page.set_default_timeout(LOADING)
    says(page, ".served", "No model is loaded.")
    page.fill("#playground-user", "Write this order as JSON: two mugs to Oslo.")
    page.fill("input[name=max_tokens]", "8")
    page.click("#playground-ask")
    for model in (f"{run.id}:base", run.id):
        says(said(page, model), ".note", "token", "tokens/s")
    answers = [said(page, model).locator(".said").inner_text() for model in (f"{run.id}:base", run.id)]
    assert answers[0] != answers[1]
    assert training.row.status is Status.RUNNING
    said(page, run.id).locator("summary").click()
    says(said(page, run.id), ".token", "<|user|>", "<|assistant|>")

    page.fill("#set-name", "mugs")
    page.click("#set-add")
    says(page, "#set-table td", "two mugs to Oslo")
    page.click("#set-run")
    cell = page.locator(f'#set-table td[data-model="{run.id}"]')
    eventually(lambda: cell.inner_text().strip() == answers[1].strip())

    with database.read() as session:
        (live,) = serving.live(session=session)
    os.kill(live.pid, signal.SIGKILL)
    says(page, ".served", "Ended", "It was killed by signal 9 (SIGKILL).", "Start again")
    eventually(lambda: not processes._threads)
    with database.read() as session:
        assert serving.on_devices(session=session) == {}


def test_without_a_run_the_page_leads_to_one(page):
    page.goto("/playground")
    says(page, "#playground-empty", "No model to try yet", "New run")
    assert not page.locator(".playground").is_visible()
