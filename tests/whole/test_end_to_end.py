"""End to end: `lathe up`, a browser that uploads data and trains, and an adapter that works."""

import json
import os
import re
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from browser import CHROMIUM, chromium, reveal, says
from paths import ROOT
from patience import ended, run
from playwright.sync_api import Locator, Page
from trainer_process import train_here
from web import free_port, wait_for

pytestmark = [
    pytest.mark.train,
    pytest.mark.browser,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning"),
]

STARTER = ROOT / "static/starter"


@dataclass(frozen=True)
class Installation:
    """A running `lathe up`: its address and the environment in which `lathe` finds it."""

    address: str
    environment: dict[str, str]
    process: "subprocess.Popen[bytes]"

    def lathe(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        return run([sys.executable, "-m", "app.cli.__main__", *arguments], env=self.environment, cwd=ROOT, text=True)


@pytest.fixture(scope="module")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    folder = tmp_path_factory.mktemp("up")
    port = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
    environment |= {"LATHE_DATA_DIR": str(folder / "data"), "LATHE_PORT": str(port), "LATHE_DEVICES": "cpu"}
    log = folder / "up.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "app.cli.__main__", "up"]
        process = subprocess.Popen(
            command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        try:
            address = f"http://127.0.0.1:{port}"
            wait_for(f"{address}/healthz", process, log)
            yield Installation(address, environment, process)
        finally:
            process.send_signal(signal.SIGINT)
            try:
                assert ended(process) == 0, log.read_text()
            finally:
                process.kill()
                process.wait()


@pytest.fixture
def page(installation: Installation, request: pytest.FixtureRequest) -> Iterator[Page]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on the PATH; on Debian: apt-get install chromium")
    with chromium(request.config, installation.address).page() as page:
        yield page


def field(page: Page, name: str) -> Any:
    reveal(page, name)
    return page.locator(f"#setting-{name}")


POINTS = "window.lathe?.plotsOfRun?.()?.panels[0]?.lines[0]?.x.length"


def fill(page: Page, name: str, value: object) -> None:
    box = field(page, name).locator("input, textarea").first
    box.fill(str(value))
    box.press("Tab")


def points(page: Page) -> int:
    """Points of the training loss that the page shows."""
    return int(page.evaluate(f"{POINTS} ?? 0"))


def test_by_mouse_an_empty_lathe_gives_an_adapter_trained_on_an_uploaded_file_under_zero_2_in_at_most_8_clicks(
    installation: Installation, page: Page, tmp_path: Path
) -> None:
    page.goto("/")
    clicks = 0

    def click(target: Locator) -> None:
        nonlocal clicks
        target.click()
        clicks += 1

    rows = tmp_path / "orders.jsonl"
    rows.write_text("".join((STARTER / "train.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)[:16]))
    click(page.locator(".empty a", has_text="Start a run"))
    page.locator("#command .cm-line", has_text="accelerate launch").wait_for()
    with page.expect_file_chooser() as chooser:
        click(page.locator("#upload"))
    chooser.value.set_files(rows)
    page.locator(".found", has_text="orders.jsonl").first.wait_for()
    click(page.locator("#setting-model input"))
    click(page.get_by_role("option", name="Starter model"))
    click(page.get_by_role("button", name="Choose a strategy"))
    click(page.locator("#setting-strategy label", has_text="ZeRO stage 2"))
    page.locator("#command", has_text="--num_processes 2").first.wait_for()
    click(page.locator("#start"))
    with page.expect_download() as caught:
        click(page.get_by_role("link", name="Download adapter"))
    with zipfile.ZipFile(caught.value.path()) as archive:
        assert any(name.endswith("adapter_model.safetensors") for name in archive.namelist())
    says(page, "body", "ZeRO-2 (DeepSpeedEngine), 2 processes")
    assert clicks <= 8


def test_the_quickstart_teaches_the_starter_model_its_skill(tmp_path: Path) -> None:
    settings = _quickstart() | {"max_steps": None, "save_steps": 0, "eval_steps": 0, "answer_rows": 24}
    paths = {name: str(ROOT / settings.pop(name)) for name in ("model", "data", "validation_data")}
    run = train_here(
        tmp_path / "run", Path(paths["model"]), paths["data"], **settings, validation_data=paths["validation_data"]
    )
    answers = run.summary["answers"]
    assert answers["rows"] == 24
    assert answers["exact_match_before"] < 0.1
    assert answers["exact_match_after"] > 0.9


@pytest.mark.nightly
def test_a_run_started_in_the_browser_under_zero_2_learns_the_skill_of_the_quickstart(
    installation: Installation, page: Page, tmp_path: Path
) -> None:
    page.goto("/new")
    page.locator("#upload input[type=file]").set_input_files(STARTER / "train.jsonl")
    says(page, ".found-place", "messages")
    fill(page, "model", STARTER)
    quickstart = _quickstart()
    for name in ("max_length", "lora_r", "lora_alpha", "target_modules", "learning_rate", "epochs", "eval_steps"):
        fill(page, name, quickstart[name])
    field(page, "strategy").get_by_text("ZeRO stage 2", exact=True).click()
    fill(page, "num_processes", 2)
    fill(page, "micro_batch_size", quickstart["micro_batch_size"] // 2)
    fill(page, "logging_steps", 1)
    fill(page, "validation_data", STARTER / "heldout.jsonl")
    fill(page, "answer_rows", 24)
    page.get_by_role("tab", name="DeepSpeed").click()
    says(page, "#deepspeed", '"stage": 2')
    page.locator("#start").click()
    page.wait_for_url(re.compile(r"/run\?id="))

    page.wait_for_function(f"() => {POINTS} > 2")
    before = points(page)
    page.wait_for_function(f"() => {POINTS} > {before}")
    page.reload()
    page.wait_for_function(f"() => {POINTS} > {before}")

    download = page.get_by_role("link", name="Download adapter")
    download.wait_for()
    says(page, "body", "ZeRO-2 (DeepSpeedEngine), 2 processes")
    with page.expect_download() as caught:
        download.click()
    archive = tmp_path / "adapter.zip"
    caught.value.save_as(archive)
    with zipfile.ZipFile(archive) as packed:
        packed.extractall(tmp_path / "unpacked")
    (config,) = (tmp_path / "unpacked").rglob("adapter_config.json")
    assert exact_match(config.parent) > 0.9
    run_id = page.url.partition("id=")[2]
    answers = json.loads(installation.lathe("show", run_id, "--json").stdout)["summary"]["answers"]
    assert answers["rows"] == 24
    assert answers["exact_match_before"] < 0.1
    assert answers["exact_match_after"] > 0.9


def test_a_second_lathe_up_in_the_same_folder_prints_the_address_of_the_first(installation: Installation) -> None:
    second = installation.lathe("up")
    assert second.returncode == 1
    assert installation.address in second.stderr


def test_zero3_on_one_cpu_process_is_refused_before_it_is_queued(installation: Installation) -> None:
    refused = installation.lathe("run", "static/starter/quickstart.yaml", "--strategy", "zero3")
    assert refused.returncode == 1
    assert "num_processes" in refused.stderr and "single" in refused.stderr
    assert "zero3" not in installation.lathe("runs", "--json").stdout


def _quickstart() -> dict[str, Any]:
    import yaml

    loaded: dict[str, Any] = yaml.safe_load((STARTER / "quickstart.yaml").read_text())
    return loaded


def exact_match(adapter: Path) -> float:
    """Returns the exact match of the starter model with this adapter on held-out rows, with plain peft and transformers."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(STARTER)
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(STARTER), adapter).eval()
    rows = [json.loads(line)["messages"] for line in (STARTER / "heldout.jsonl").read_text().splitlines()]
    prompts = [tokenizer.apply_chat_template(row[:-1], tokenize=False, add_generation_prompt=True) for row in rows]
    batch = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left", add_special_tokens=False)
    with torch.inference_mode():
        answered = model.generate(
            input_ids=batch["input_ids"], attention_mask=batch["attention_mask"], max_new_tokens=128, do_sample=False
        )
    texts = tokenizer.batch_decode(answered[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
    right = [text.strip() == row[-1]["content"].strip() for text, row in zip(texts, rows, strict=True)]
    return sum(right) / len(right)
