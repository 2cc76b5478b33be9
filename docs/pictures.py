"""Takes the pictures of README.md and docs/, and notes the navigation that they show in docs/pictures.json.

    .venv/bin/python docs/pictures.py [NAME ...] [--to FOLDER]

It starts `lathe up` in a temporary folder, adds data sets, trains the starter model for a minute, and drives a real Chromium.
"""

import argparse
import json
import random
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from demo import ROOT, SECONDS, SELECTORS, STARTER, lathe_up, settings, settle
from playwright.sync_api import Page, sync_playwright

from app.web.addresses import PAGES

MODEL = "static/starter"
NAVIGATION = "pictures.json"
# Shows paths relative to the checkout.
_RELATIVE = """(root) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(root, '');
}"""


@dataclass(frozen=True)
class Studio:
    """An open page, the address of the server, and the ids of its data sets by file name."""

    page: Page
    address: str
    ids: dict[str, str]

    def open(self, path: str, **query: object) -> None:
        self.page.goto(f"{self.address}{path}?{urlencode(query)}")
        self.page.wait_for_selector("#skeleton", state="detached")

    def dataset(self, name: str, tab: str, **query: object) -> None:
        self.open("/dataset", id=self.ids[name], tab=tab, **query)


def make_files(folder: Path) -> list[Path]:
    """Data sets of several formats and lengths."""
    generator = random.Random(7)  # noqa: S311 - no secret
    words = (
        "the",
        "a",
        "river",
        "stone",
        "report",
        "order",
        "table",
        "quiet",
        "early",
        "market",
        "harbor",
        "because",
        "green",
    )

    def text(most: float) -> str:
        return " ".join(generator.choice(words) for _ in range(max(3, int(generator.lognormvariate(most, 0.9)))))

    rows: dict[str, list[dict[str, Any]]] = {
        "articles.jsonl": [{"instruction": f"Summarize: {text(4.2)}", "output": text(3.2)} for _ in range(400)],
        "chat.jsonl": [
            {"messages": [{"role": "user", "content": text(2.5)}, {"role": "assistant", "content": text(3.0)}]}
            for _ in range(250)
        ],
        "questions.jsonl": [
            {"id": number, "question": {"text": question}, "answers": [{"text": answer}]}
            for number, (question, answer) in enumerate(
                [("What is the capital of Peru?", "Lima"), ("How many legs does a spider have?", "Eight"),
                 ("What is 12 times 12?", "144"), ("Which planet is closest to the sun?", "Mercury")]
            )
        ],
    }  # fmt: skip
    for name, made in rows.items():
        (folder / name).write_text("\n".join(json.dumps(row) for row in made), encoding="utf-8")
    shutil.copy(STARTER / "train.jsonl", folder / "orders.jsonl")
    return [folder / name for name in (*rows, "orders.jsonl")]


def add(page: Page, address: str, files: list[Path]) -> dict[str, str]:
    """Uploads the files on the page Data sets; their ids by name."""
    for file in files:
        page.goto(f"{address}/new-dataset")
        page.wait_for_selector("#skeleton", state="detached")
        page.locator(SELECTORS["upload"]).set_input_files(file)
        page.locator("a[href*='/dataset?id=']", has_text=file.name).first.wait_for()
        settle(page)
    links = page.locator("a[href*='/dataset?id=']")
    found = [(link.inner_text(), str(link.get_attribute("href"))) for link in links.all()]
    return {name: match[1] for name, href in found if (match := re.search(r"id=([0-9a-f]{16})", href))}


def datasets(studio: Studio) -> None:
    studio.open("/datasets")
    dismiss = studio.page.get_by_role("button", name="Dismiss")
    settle(studio.page)
    while dismiss.count():
        dismiss.first.click()
        settle(studio.page)


def mapping(studio: Studio) -> None:
    studio.dataset("questions.jsonl", "columns")
    for role, path in (("prompt", "question.text"), ("completion", "answers.0.text")):
        studio.page.locator(f"[name='role.{role}']").select_option(path)
        settle(studio.page)


def tokens(studio: Studio) -> None:
    studio.dataset("orders.jsonl", "tokens", model=MODEL)
    studio.page.locator(".tokens .t").first.wait_for()


def lengths(studio: Studio) -> None:
    studio.dataset("articles.jsonl", "lengths", model=MODEL, max_length=512)
    studio.page.locator("figure.histogram").first.wait_for()


def new_run(studio: Studio) -> None:
    studio.open("/new", data=studio.ids["articles.jsonl"], model=MODEL)
    studio.page.locator(SELECTORS["forecast"]).first.wait_for()


def mixing(studio: Studio) -> None:
    page = studio.page
    new_run(studio)
    for count, name in enumerate(("chat.jsonl", "orders.jsonl"), start=2):
        page.locator(".add-set select").select_option(studio.ids[name])
        page.locator("table.mix tbody tr").nth(count - 1).wait_for()
    for row, weight in enumerate(("2", "1", "1")):
        page.locator(f'input[data-set="{row}"][data-key="weight"]').fill(weight)
        page.keyboard.press("Tab")
        settle(page)
    settle(page)


def run(studio: Studio) -> None:
    query = settings() | {"model": MODEL, "data": studio.ids["orders.jsonl"]}
    studio.open("/new", **query)
    page = studio.page
    page.wait_for_function(f"() => !document.querySelector({SELECTORS['start']!r})?.disabled")
    page.locator(SELECTORS["start"]).click()
    page.wait_for_url(re.compile(r"/run\?id="))
    page.locator(SELECTORS["download"]).first.wait_for(timeout=5 * SECONDS * 1000)


def finished(studio: Studio) -> None:
    """The newest run that has finished."""
    listed = studio.page.request.get(f"{studio.address}/api/runs?status=finished&limit=1").json()["runs"]
    studio.open("/run", id=listed[0]["id"])


def compare(studio: Studio) -> None:
    ids = [_trained(studio, rate) for rate in (0.001, 0.003, 0.01)]
    studio.open("/compare", runs=",".join(ids))
    studio.page.locator(".compare-plots .plot canvas").first.wait_for()


def _trained(studio: Studio, rate: float) -> str:
    """A finished run with this learning rate."""
    values = settings() | {"model": MODEL, "data": studio.ids["orders.jsonl"], "name": f"learning rate {rate}"}
    request = studio.page.request
    answer = request.post(f"{studio.address}/api/runs", data=values | {"learning_rate": rate})
    run_id = str(answer.json()["id"])
    while request.get(f"{studio.address}/api/runs/{run_id}").json()["status"] in ("queued", "running"):
        studio.page.wait_for_timeout(500)
    return run_id


def runs(studio: Studio) -> None:
    for number in range(2):
        _waiting(studio, f"next {number + 1}")
    studio.open("/")
    studio.page.locator("table.queue td.name").first.wait_for()


def _waiting(studio: Studio, name: str) -> None:
    """A queued run: the queue is paused first."""
    studio.page.request.post(f"{studio.address}/api/queue", data={"paused": True})
    values = settings() | {"model": MODEL, "data": studio.ids["orders.jsonl"], "name": name}
    studio.page.request.post(f"{studio.address}/api/runs", data=values)


def system(studio: Studio) -> None:
    studio.open("/system")
    studio.page.locator("section.panel table").first.wait_for()


PICTURES: dict[str, tuple[Callable[[Studio], None], int]] = {
    "datasets": (datasets, 720), "mapping": (mapping, 760), "tokens": (tokens, 760), "lengths": (lengths, 980),
    "new-run": (new_run, 900), "mixing": (mixing, 900), "run": (run, 1000),
    "take-away": (finished, 1000), "answers": (finished, 1000),
    "compare": (compare, 1000), "runs": (runs, 760), "system": (system, 1000),
}  # fmt: skip
"""The scene and the height in pixels of each picture."""
ONLY = {"mixing": ".found-place", "take-away": "#take-away", "answers": "#answers"}
"""Pictures of a part of the page."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[*PICTURES, []], help="default: all")
    parser.add_argument("--to", type=Path, default=ROOT / "docs", metavar="FOLDER", help="where the pictures go")
    given = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("No Chromium on the PATH. On Debian: sudo apt-get install -y chromium")
    with tempfile.TemporaryDirectory() as folder, lathe_up() as address, sync_playwright() as playwright:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=flags)
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(SECONDS * 1000)
        studio = Studio(page, address, add(page, address, make_files(Path(folder))))
        for name in given.names or PICTURES:
            scene, height = PICTURES[name]
            page.set_viewport_size({"width": 1280, "height": height})
            scene(studio)
            settle(page)
            page.evaluate(_RELATIVE, f"{ROOT}/")
            subject = page.locator(ONLY[name]).first if name in ONLY else page
            subject.screenshot(path=given.to / f"{name}.png", animations="disabled")
            print(given.to / f"{name}.png")
        browser.close()
    if not given.names:
        note = {"navigation": [address.name for address in PAGES if address.in_header]}
        (given.to / NAVIGATION).write_text(json.dumps(note) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
