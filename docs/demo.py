"""Films the path from a data set to an adapter, for the top of README.md: docs/demo.webp and docs/demo-dark.webp.

    .venv/bin/python docs/demo.py [--scheme light] [--frames FOLDER]

It starts `lathe up` in a temporary folder and drives a real Chromium: upload, choose the model, look at the memory forecast, start,
watch the loss, download. It takes a few minutes. Whatever it looks for on a page is in `SELECTORS`.
"""

import argparse
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlencode

import yaml
from PIL import Image
from playwright.sync_api import Locator, Page, sync_playwright

ROOT = Path(__file__).parents[1]
STARTER = ROOT / "static" / "starter"
NAMES = {"light": "demo.webp", "dark": "demo-dark.webp"}
SIZE = {"width": 1280, "height": 800}
SECONDS = 120  # for anything to appear, on a machine that is busy
SELECTORS = {
    "upload": "#upload input[type=file]",
    "upload box": "#upload",
    "uploaded": ".found-place",
    "model": "#setting-model input",
    "card": "#memory-gpu input",
    "option": "[role=option]",
    "forecast": ".memory-card .memory .parts",
    "start": "#start",
    "chart": "#plots .plot-canvas",
    "download": "a[href*='adapter.zip']",
}
CARD = "T4"  # the GPU for which the forecast is shown: part of its name
LIVE_FRAMES, LIVE_MS = 9, 430
MOVE_FRAMES = 5

POINTS = "() => window.lathe?.plotsOfRun?.()?.panels[0]?.lines[0]?.x.length ?? 0"
# A caption and a pointer, laid over the page: a screenshot has no pointer of its own. Paths are shown relative to the checkout.
OVERLAY = """([text, x, y, pressed, root]) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    if (texts.currentNode.data.includes(root)) texts.currentNode.data = texts.currentNode.data.replaceAll(root, '');
  }
  let layer = document.getElementById('demo-layer');
  if (!layer) {
    layer = document.createElement('div');
    layer.id = 'demo-layer';
    layer.style.cssText = 'position:fixed;inset:0;z-index:99999;pointer-events:none';
    document.body.append(layer);
  }
  layer.innerHTML = `
    <div style="position:absolute;bottom:22px;left:50%;transform:translateX(-50%);padding:11px 24px;border-radius:24px;
      background:#171b21;color:#fff;border:1px solid #ffffff40;box-shadow:0 6px 24px #0005;
      font:600 19px system-ui,'Noto Sans','Liberation Sans','DejaVu Sans',sans-serif">${text}</div>
    <svg style="position:absolute;left:${x}px;top:${y}px;overflow:visible" width="26" height="26" viewBox="0 0 26 26">
      ${pressed ? '<circle cx="3" cy="3" r="17" fill="#2a62d040" stroke="#2a62d0" stroke-width="2"/>' : ''}
      <path d="M2 2 L2 21 L7 16.5 L10.5 24 L14 22.5 L10.5 15 L17.5 15 Z" fill="#111" stroke="#fff" stroke-width="1.6"/>
    </svg>`;
}"""


class Film:
    """The frames so far, each with its time on the screen in milliseconds."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.caption = ""
        self.pointer = (SIZE["width"] * 0.6, SIZE["height"] * 0.55)
        self.frames: list[tuple[Image.Image, int]] = []

    def shoot(self, milliseconds: int, *, pressed: bool = False) -> None:
        """Adds a frame of the page as it is."""
        self.page.evaluate(OVERLAY, [self.caption, *self.pointer, pressed, f"{ROOT}/"])
        picture = Image.open(io.BytesIO(self.page.screenshot(animations="disabled"))).convert("RGB")
        if self.frames and self.frames[-1][0].tobytes() == picture.tobytes():
            self.frames[-1] = (picture, self.frames[-1][1] + milliseconds)
        else:
            self.frames.append((picture, milliseconds))

    def click(self, target: Locator, *, really: bool = True) -> None:
        """Moves the pointer to the target and presses it."""
        target.scroll_into_view_if_needed()
        box = target.bounding_box()
        if box is None:
            raise RuntimeError(f"nothing to click: {target}")
        (x, y), begin = (box["x"] + min(box["width"] / 2, 120), box["y"] + box["height"] / 2), self.pointer
        for step in range(1, MOVE_FRAMES + 1):
            share = step / MOVE_FRAMES
            eased = share * share * (3 - 2 * share)
            self.pointer = (begin[0] + (x - begin[0]) * eased, begin[1] + (y - begin[1]) * eased)
            self.shoot(60)
        self.shoot(180, pressed=True)
        if really:
            target.click()

    def scroll_up(self) -> None:
        self.page.evaluate("() => window.scrollTo(0, 0)")

    def save(self, path: Path) -> None:
        pictures, durations = zip(*self.frames, strict=True)
        pictures[0].save(
            path, save_all=True, append_images=pictures[1:], duration=list(durations), loop=0, quality=66, method=6,
            allow_mixed=True, minimize_size=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--scheme", choices=NAMES, nargs="+", default=list(NAMES), help="color schemes to film")
    parser.add_argument("--to", type=Path, default=ROOT / "docs", metavar="FOLDER", help="where the films go")
    parser.add_argument("--frames", type=Path, metavar="FOLDER", help="also write every frame there as PNG")
    given = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        sys.exit("No Chromium on the PATH. On Debian: sudo apt-get install -y chromium")
    for scheme in given.scheme:
        with lathe_up() as address, sync_playwright() as playwright:
            flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
            browser = playwright.chromium.launch(executable_path=chromium, args=flags)
            page = browser.new_context(viewport=SIZE, color_scheme=scheme, accept_downloads=True).new_page()
            page.set_default_timeout(SECONDS * 1000)
            film = Film(page)
            play(film, address)
            browser.close()
        path = given.to / NAMES[scheme]
        film.save(path)
        seconds = sum(duration for _, duration in film.frames) / 1000
        print(f"{path}: {len(film.frames)} frames, {seconds:.0f} s, {path.stat().st_size / 1e6:.2f} MB")
        if given.frames:
            given.frames.mkdir(parents=True, exist_ok=True)
            for number, (picture, _) in enumerate(film.frames):
                picture.save(given.frames / f"{scheme}-{number:03d}.png")


def play(film: Film, address: str) -> None:
    """The story, scene by scene."""
    page = film.page

    def at(name: str) -> Locator:
        return page.locator(SELECTORS[name]).first

    page.goto(f"{address}/new?{urlencode(settings())}")
    page.wait_for_selector("#skeleton", state="detached")
    at("start").wait_for()
    settle(page)
    film.caption = "Upload a data set"
    film.shoot(900)
    film.click(at("upload box"), really=False)
    page.locator(SELECTORS["upload"]).set_input_files(STARTER / "train.jsonl")
    at("uploaded").get_by_text(re.compile(r"\d")).first.wait_for()
    settle(page)
    film.shoot(1800)

    film.scroll_up()
    film.caption = "Choose a model"
    film.click(at("model"))
    page.locator(SELECTORS["option"]).first.wait_for()
    film.shoot(700)
    film.click(page.locator(SELECTORS["option"]).first)
    at("forecast").wait_for()
    settle(page)
    film.shoot(900)

    film.caption = "See whether it fits, before anything starts"
    film.click(at("card"))
    film.click(page.locator(SELECTORS["option"], has_text=CARD).first)
    settle(page)
    film.shoot(2200)

    film.scroll_up()
    film.caption = "Start"
    page.wait_for_function(f"() => !document.querySelector({SELECTORS['start']!r}).disabled")
    film.click(at("start"))
    page.wait_for_url(re.compile(r"/run\?id="))
    film.caption = "Watch it train"
    film.pointer = (SIZE["width"] * 0.62, SIZE["height"] * 0.12)
    watch(film)

    film.caption = "Held-out answers, before and after"
    film.shoot(2500)
    film.caption = "Download the adapter"
    with page.expect_download():
        film.click(at("download"))
    film.shoot(2200)


def watch(film: Film) -> None:
    """Frames of the run from its start to its result, spread evenly over its points."""
    download, taken, drawn = film.page.locator(SELECTORS["download"]), Film(film.page), -1
    taken.caption, taken.pointer = film.caption, film.pointer
    deadline = time.monotonic() + 5 * SECONDS
    while not download.count() and time.monotonic() < deadline:
        points = int(film.page.evaluate(POINTS))
        if points not in (0, drawn):
            drawn = points
            taken.shoot(LIVE_MS)
        film.page.wait_for_timeout(250)
    download.first.wait_for()
    settle(film.page)
    last = len(taken.frames) - 1
    chosen = sorted({round(number * last / (LIVE_FRAMES - 1)) for number in range(LIVE_FRAMES)})
    film.frames += [taken.frames[number] for number in chosen]


def settings() -> dict[str, str]:
    """The quickstart's settings but model and data, which the film chooses."""
    values = yaml.safe_load((STARTER / "quickstart.yaml").read_text(encoding="utf-8"))
    values |= {"validation_data": str(STARTER / "heldout.jsonl"), "logging_steps": 1}
    return {name: str(value) for name, value in values.items() if name not in ("model", "data")}


def settle(page: Page) -> None:
    """Waits until the text of the page has stayed the same for a second, or for twenty seconds at most."""
    seen, same = "", 0
    for _ in range(100):
        page.wait_for_timeout(200)
        text = page.inner_text("body")
        seen, same = text, same + 1 if text == seen else 0
        if same == 5:
            return


@contextmanager
def lathe_up() -> Iterator[str]:
    """A `lathe up` of its own, in a temporary folder; its address."""
    with tempfile.TemporaryDirectory(prefix="lathe-demo-") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("LATHE_")}
        environment |= {"LATHE_DATA_DIR": f"{folder}/data", "LATHE_PORT": "0", "LATHE_DEVICES": "cpu"}
        environment |= {"OMP_WAIT_POLICY": "PASSIVE", "PYTHONPATH": str(ROOT)}  # the browser uses the same cores
        log = Path(folder) / "up.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "app.cli", "up"]
            started = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=output, stderr=output)
        try:
            yield address_in(log, started)
        finally:
            started.send_signal(signal.SIGINT)
            started.wait(60)


def address_in(log: Path, started: "subprocess.Popen[bytes]") -> str:
    """The address that `lathe up` prints."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        if found := re.search(r"http://[\d.:]+", log.read_text()):
            return found[0]
        time.sleep(0.1)
    raise RuntimeError(f"lathe up did not start: {log.read_text()}")


if __name__ == "__main__":
    main()
