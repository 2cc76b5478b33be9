"""The page Playground in Chromium, with the real serving process."""

import json
import os
import re
import shutil
import signal
import threading

import numpy as np
import pytest
from browser import IN_BROWSER, says
from paths import ROOT
from patience import eventually
from played_run import PlayedRun
from run_files import checkpoint, folder_of
from safetensors.numpy import save_file
from sqlmodel import delete

from training.config.run_config import RunConfig
from training.run_folder.paths import RUN_VARIABLE
from worker.engines.local import starting
from worker.machine import devices, overload
from worker.machine import processes as process
from worker.machine.process_identity import hostname
from worker.serving import processes
from worker.store import database, runs, served_models
from worker.store.tables import PromptSet, ServedModel, Status

pytestmark = IN_BROWSER
STARTER = ROOT / "static" / "starter"


@pytest.fixture
def worker(page, monkeypatch):
    """A worker's rounds on a machine without GPUs; its processes end with the test."""
    monkeypatch.setattr(devices, "all_gpus", lambda: ())
    monkeypatch.setattr(overload, "here", lambda: "")
    with database.write() as session:
        session.exec(delete(ServedModel))
        session.exec(delete(PromptSet))
    ended = threading.Event()

    def rounds():
        while not ended.wait(0.1):
            starting.start_waiting()
            processes.start_waiting()

    thread = threading.Thread(target=rounds)
    thread.start()
    yield
    ended.set()
    thread.join()
    with database.write() as session:
        for one in served_models.live(session=session):
            served_models.request_end(session=session, served_id=one.id, reason="The test ends.")
    processes.wait_for_ends()


@pytest.fixture
def training(worker):
    """A queued run of many short steps, which the worker's supervisor trains until the test ends."""
    quiet = {"verify_rows": 0, "eval_split": 0, "save_steps": 0, "micro_batch_size": 1, "max_steps": 1_000_000}
    config = RunConfig(name="training", model=str(STARTER), data=str(STARTER / "train.jsonl"), max_length=64, **quiet)
    with database.write() as session:
        run_id = runs.create(session=session, config=config, dataset_id=None).id
    yield run_id
    for supervisor in list(starting.supervisors.started.values()):
        process.kill_tree(supervisor.pid)
    process.end(process.marked(RUN_VARIABLE, run_id))


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


def row(run_id):
    with database.read() as session:
        return runs.get(session=session, run_id=run_id)


@pytest.mark.nightly
def test_base_and_adapter_answer_side_by_side_while_a_run_trains_and_a_killed_process_is_named(page, worker, training):
    run = finished_run()
    page.goto(f"/playground?run={run.id}")
    says(page, ".served", "No model is loaded.")
    page.fill("#playground-user", "Write this order as JSON: two mugs to Oslo.")
    page.click(".sampling summary")
    page.fill("input[name=max_tokens]", "8")
    page.click("#playground-ask")
    says(page, ".served", "on the CPU, process")
    before = eventually(lambda: row(training).step)
    page.click("#playground-ask")
    base = f"{training}:base"  # the oldest run gives the base model its name
    for model in (base, run.id):
        said(page, model).locator(".note", has_text=re.compile("token.*(ended|cut at the maximum)")).wait_for()
    answers = [said(page, model).locator(".said").inner_text() for model in (base, run.id)]
    assert answers[0] != answers[1]
    eventually(lambda: row(training).step > before)
    assert (row(training).status, row(training).devices) == (Status.RUNNING, [f"{hostname()}/cpu"])
    said(page, run.id).locator("summary").click()
    says(said(page, run.id), ".token", "<|user|>", "<|assistant|>")

    page.fill("#set-name", "mugs")
    page.click("#set-add")
    says(page, "#set-table td", "two mugs to Oslo")
    page.click("#set-run")
    cell = page.locator(f'#set-table td[data-model="{run.id}"]')
    eventually(lambda: cell.inner_text().strip() == answers[1].strip())
    page.select_option("#set-against", base)
    assert cell.locator("ins").count() > 0
    page.check("#set-every")
    says(page, "#set-note", "Every run that finishes from now on answers this set")

    with database.read() as session:
        (live,) = served_models.live(session=session)
    os.kill(live.pid, signal.SIGKILL)
    says(page, ".served", "Ended", "It was killed by signal 9 (SIGKILL).", "Start again")
    assert row(training).status is Status.RUNNING


def test_without_a_run_the_page_leads_to_one(page):
    page.goto("/playground")
    says(page, "#playground-empty", "No model to try yet", "New run")
    assert not page.locator(".playground").is_visible()


def test_results_come_first_checkpoints_are_folded_and_the_expected_answer_is_text(page):
    run = finished_run()
    (folder_of(run.id) / "parity").mkdir()
    row = {"row": 4, "text": "two mugs", "messages": None, "tools": None, "expected": [7, 8], "expected_text": " {} "}
    (folder_of(run.id) / "parity" / "rows.json").write_text(json.dumps({"prompts": [row]}))
    training = PlayedRun("training", model=str(STARTER)).claim()
    (checkpoint(training.id, 10) / "adapter_config.json").write_text("{}")
    page.goto("/playground")
    says(page, "#playground-models .checkpoints summary", "Checkpoints (1)")
    assert page.locator(f"input[value='{run.id}']").is_checked()
    assert not page.locator(f"input[value='{training.id}:checkpoint-10']").is_visible()
    ask = page.locator("#playground-ask").bounding_box()
    page.locator("#playground-rows option", has_text="row 5: two mugs").wait_for(state="attached")
    page.select_option("#playground-rows", "0")
    assert page.locator("#playground-expected").inner_text() == "Expected: {}"
    assert page.locator("#playground-ask").bounding_box() == ask
