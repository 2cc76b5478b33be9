"""A page on which nothing changes: the server sends nothing, and the browser asks only whether the server is
there, moves nothing, writes only times."""

import time

import pytest
from browser import IN_BROWSER, Chromium, becomes_quiet, requests_of
from played_run import PlayedRun
from prepared import prepared_installation  # noqa: F401 a fixture
from starlette.datastructures import QueryParams

from app.access.dataset_imports import Intakes
from app.pages import VIEWS, datasets, system
from app.pages.common.view import _changed, _event
from app.pages.runs import page as runs
from training.run_folder.events import Metrics, PhaseStarted

LATER = 30.0
QUERIES = {
    "/run": ["id={finished}", "id={failed}", "id={waiting}"],
    "/compare": ["runs={finished},{failed}"],
    "/sweep": ["id={sweep}"],
    "/dataset": ["id={heldout}"],
}
WATCH = """() => {
  window.written = [];
  new MutationObserver((changes) => {
    for (const { target } of changes) {
      const element = target.closest ? target : target.parentElement;
      if (!element?.closest("[data-ago], [data-since], [data-until]")) written.push(element?.outerHTML ?? "removed");
    }
  }).observe(document.documentElement, { subtree: true, childList: true, characterData: true, attributes: true });
}"""
ENDLESS = """() => document.getAnimations().filter((one) => one.effect.getComputedTiming().endTime === Infinity)
  .map((one) => `${one.animationName} of ${one.effect.target.outerHTML}`)"""


@pytest.fixture(scope="module")
def browser(site):
    """A browser of these tests alone: the clock of a page is that of every later page of its browser."""
    chromium = Chromium(site[0])
    yield chromium
    chromium.close()


@pytest.fixture
def page(emptied, browser):
    with browser.page() as page:
        yield page


def test_the_parts_of_a_page_are_the_same_half_a_minute_later(prepared, monkeypatch):
    monkeypatch.setattr(system._services, "_seconds", 0.0)
    monkeypatch.setattr(datasets, "intakes", Intakes())  # those of other tests leave the list after two minutes
    pages = [
        (view, QueryParams(query.format(**vars(prepared)))) for view in VIEWS for query in QUERIES.get(view.path, [""])
    ]

    def parts():
        return {(view.path, str(query)): parts_of(view, query) for view, query in pages}

    parts()  # the first reading may measure, as the disk's content
    before, now = parts(), time.time
    monkeypatch.setattr(time, "time", lambda: now() + LATER)
    after = parts()
    assert {page: [name for name in after[page] if after[page][name] != before[page][name]] for page in after} == {
        page: [] for page in after
    }


@pytest.mark.parametrize(
    "address",
    [
        pytest.param(address, marks=IN_BROWSER)
        for address in (
            "/",
            "/run?id={training}",
            "/run?id={finished}",
            "/compare?runs={training},{finished}",
            "/system",
            "/playground",
        )
    ],
)
def test_an_open_page_asks_only_whether_the_server_is_there_and_writes_only_times(page, address):
    training = (
        PlayedRun("training")
        .claim("host/cuda:0")
        .report(PhaseStarted(phase="training"), Metrics(step=1, values={"loss": 2.0}))
    )
    finished = PlayedRun("finished").claim().report(Metrics(step=1, values={"loss": 2.0})).end()
    page.emulate_media(reduced_motion="no-preference")
    page.clock.install()
    page.goto(address.format(training=training.id, finished=finished.id))
    page.wait_for_function("() => window.lathe?.view")
    becomes_quiet(page)
    page.clock.run_for(2000)  # the first texts of the times
    asked = requests_of(page)
    page.evaluate(
        "AbortSignal.timeout = () => new AbortController().signal"
    )  # the limit of a request is of the real time
    page.evaluate(WATCH)
    page.clock.run_for(60_000)
    assert (asked, page.evaluate("written"), page.evaluate(ENDLESS)) == ([], [], [])


def test_a_step_of_a_run_sends_its_row_to_the_list_of_runs(home):
    for number in range(3):
        PlayedRun(f"waiting {number}")
    run = PlayedRun("training").claim().report(PhaseStarted(phase="training"), Metrics(step=1, values={"loss": 2.0}))
    before = parts_of(runs.view, QueryParams())
    run.report(Metrics(step=2, values={"loss": 1.0}))
    after = parts_of(runs.view, QueryParams())
    changed = {name: _changed(before[name], text) for name, text in after.items() if text != before[name]}
    assert list(changed["list"]) == [run.id] and len(_event({"parts": changed}, "version")) <= 1500


def parts_of(view, query):
    return view.parts({"query": query, **view.context(query)})
