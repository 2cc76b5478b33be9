"""Every page in light and dark against the rules of axe-core: no serious or critical fault, no error in the console."""

from importlib.util import find_spec
from pathlib import Path

import pytest
from browser import IN_BROWSER, says
from played_run import SUMMARY, PlayedRun

from training.run_folder.events import Metrics, PhaseStarted, Planned
from worker.datasets import datasets
from worker.store import database
from worker.store.runs import describe
from worker.store.tables import Status

pytestmark = IN_BROWSER

PAGES = {
    "Runs": ("/", "table.runs td.name a"),
    "Runs, none": ("/?search=nothing", ".empty"),
    "Runs, grouped": ("/?group=method", "tr.group summary"),
    "Run, training": ("/run?id={training}", ".plots canvas"),
    "Run, finished": ("/run?id={finished}", ".take-away"),
    "Run, failed": ("/run?id={failed}", ".failure"),
    "Run, unknown": ("/run?id=nothing", ".empty"),
    "Compare": ("/compare?runs={training},{finished}", "table"),
    "Compare, grouped": ("/compare?runs={training},{finished}&group=method", "tr.runs-group"),
    "New run": ("/new", "#start"),
    "Sweeps, none": ("/sweeps", ".empty"),
    "New sweep": ("/new-sweep?clone={finished}", "#start-sweep"),
    "Data sets": ("/datasets", "table.sets"),
    "Data set": ("/dataset?id={dataset}", "table"),
    "Data set, columns": ("/dataset?id={dataset}&tab=columns", ".as-seen"),
    "Data set, tokens": ("/dataset?id={dataset}&tab=tokens&model=static/starter&max_length=8", ".tokens"),
    "Data set, lengths": ("/dataset?id={dataset}&tab=lengths&model=static/starter&max_length=none", "figure svg"),
    "Playground": ("/playground", "#playground-models input"),
    "Diagnose": ("/diagnose", "textarea"),
    "Import": ("/import", "textarea"),
    "Settings": ("/settings", "ul.channels"),
    "Tour": ("/start", "section.step"),
    "System": ("/system", "section.panel table"),
}
RARE = (
    "Runs, none",
    "Runs, grouped",
    "Compare, grouped",
    "Run, unknown",
    "Sweeps, none",
    "New sweep",
    "Import",
    "Settings",
    "Tour",
    "Data set, columns",
    "Data set, tokens",
    "Data set, lengths",
)
STILL = """document.getAnimations().forEach((one) =>
  one.effect.getComputedTiming().endTime === Infinity ? one.cancel() : one.finish())"""
"""Ends what fades and moves."""
COLOR_RULES = ["color-contrast", "link-in-text-block"]  # the other rules find the same in light and dark


def axe():
    """The source of axe-core, from an installed package."""
    found = find_spec("axe_playwright_python")
    assert found and found.origin
    return (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")


def training_run():
    plan = Planned(
        total_steps=100, start_step=0, train_rows=19, eval_rows=1, skipped_rows=0, truncated_rows=0, world_size=1,
        engine="LlamaForCausalLM", zero_stage=None, precision="fp32", trainable_parameters=10, total_parameters=1000,
        target_modules=["q_proj"],
    )  # fmt: skip
    values = [Metrics(step=step, values={"loss": 3 - step / 50, "learning_rate": 1e-4}) for step in range(1, 41)]
    memory = [Metrics(step=step, rank=0, values={"host_rss": 2.0**30}) for step in range(1, 41)]
    run = PlayedRun("training").claim("host/cuda:0")
    return run.report(PhaseStarted(phase="training"), plan, *values, *memory).prints("step 40", "Warning: slow")


@pytest.fixture
def filled(page, tmp_path):
    """A page of an installation with runs of every status and a data set; the ids that addresses need."""
    finished = PlayedRun("finished").claim().end(summary=SUMMARY)
    error = {
        "message": "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "fix": "Halve micro_batch_size.",
        "phase": "training",
    }
    failed = PlayedRun("failed").claim().end(Status.FAILED, error=error)
    PlayedRun("queued")
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "1 + 1 =", "completion": " 2"}\n' * 20)
    dataset = datasets.add_file(path=path, name="rows.jsonl")
    with database.write() as session:
        describe(session=session, run_id=finished.id, tags=["paper"], pinned=True)
    ids = {"finished": finished.id, "failed": failed.id, "training": training_run().id, "dataset": dataset.id}
    return page, ids


@pytest.mark.skipif(find_spec("axe_playwright_python") is None, reason="needs axe-playwright-python")
@pytest.mark.parametrize("rare", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_no_page_has_a_serious_fault_in_light_or_dark(filled, rare):
    page, ids = filled
    page.add_init_script(axe())
    messages = []
    page.on("console", lambda message: messages.append(message.text) if message.type == "error" else None)
    faults = {}
    for name, (path, selector) in PAGES.items():
        if (name in RARE) != rare:
            continue
        page.emulate_media(color_scheme="light")
        page.goto(path.format(**ids))
        says(page, selector, "")
        page.evaluate(STILL)
        found = serious(page, {})
        page.emulate_media(color_scheme="dark")
        page.locator("body.dark, body.view").wait_for()  # a page that is read follows the system by itself
        page.evaluate(STILL)
        found += serious(page, {"runOnly": {"type": "rule", "values": COLOR_RULES}})
        for fault in found:
            for node in fault["nodes"][:3]:
                faults.setdefault(f"{name}: {fault['id']}", []).append(node["html"][:160])
    assert faults == {}
    missing = [
        "Failed to load resource: the server responded with a status of 404 (Not Found)"
    ]  # the unknown run's page
    assert messages == (missing if rare else [])


def serious(page, options):
    found = page.evaluate("options => axe.run(document, options)", {"resultTypes": ["violations"]} | options)
    return [fault for fault in found["violations"] if fault["impact"] in ("serious", "critical")]
