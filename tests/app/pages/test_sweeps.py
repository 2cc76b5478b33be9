"""The pages Sweeps, New sweep and Sweep, in Chromium."""

import pytest
from browser import says
from played_run import PlayedRun

from training.config.run_config import RunConfig
from training.run_folder.events import Metrics
from worker.settings import ROOT
from worker.store import database, run_list, runs

pytestmark = pytest.mark.browser
STARTER = ROOT / "static" / "starter"


def vary(page, place, label, values):
    page.locator(f"#vary-{place} input").fill(label)
    page.get_by_role("option", name=label, exact=True).click()
    page.locator(f"#values-{place} textarea").fill(values)


def test_a_sweep_from_a_run_is_planned_started_shown_and_stopped(page):
    with database.write() as session:
        config = RunConfig(model=str(STARTER), data=str(STARTER / "train.jsonl"), max_steps=40)
        run = runs.create(session=session, config=config, dataset_id=None)
        runs.request_stop(session=session, run_id=run.id)
    page.goto(f"/new-sweep?clone={run.id}")
    page.wait_for_function("document.querySelector('#sweep-config textarea')?.value.includes('max_steps: 40')")
    vary(page, 0, "LoRA r", "8, 0, 16")
    says(page, ".plan-words", "3 runs, time unknown, 1 cannot start")
    says(page, "tr.out", "cannot start", "is out of bounds")
    page.locator("#start-sweep").click()
    page.wait_for_url("**/sweep?id=*")
    says(page, ".facts", "2 queued")
    says(page, "details.panel", "1 run left out")
    with database.read() as session:
        found = run_list.listing(session=session)
        ranks = {run.config["lora_r"]: run.id for run in found if run.sweep_id}
    PlayedRun.of(ranks[16]).claim().report(Metrics(step=40, values={"eval_loss": 1.25})).end(
        summary={"eval_loss": 1.25}
    )
    says(page, ".sweep-best", "r=16: evaluation loss 1.2500")
    page.get_by_role("button", name="Stop").click()
    says(page, "#ask", "1 run will stop")
    page.locator("#ask [data-confirm]").click()
    says(page, ".facts", "1 stopped")
    page.get_by_role("button", name="Delete").wait_for()
    page.goto("/?group=sweep")
    says(page, "tr.group", "2 runs")
    page.goto("/sweeps")
    says(page, "table.sets", "r=16: evaluation loss 1.2500")
