"""A page whose server does not answer (static/connection.js)."""

import pytest
from browser import IN_BROWSER, becomes_live, becomes_quiet
from played_run import PlayedRun

from training.run_folder.events import Metrics, PhaseStarted

pytestmark = IN_BROWSER

NOTICE = "#connection:not([hidden])"
CLOCKS_IN_A_MINUTE = """() => {
  const now = Date.now;
  const clocks = () => [...document.querySelectorAll("[data-since]")].map((clock) => clock.textContent);
  lathe.updateTimes();
  const before = clocks();
  Date.now = () => now() + 60_000;
  lathe.updateTimes();
  const after = clocks();
  Date.now = now;
  return [before, after];
}"""


@pytest.fixture
def training(emptied):
    return (
        PlayedRun("training")
        .claim("host/cuda:0")
        .report(PhaseStarted(phase="training"), Metrics(step=1, values={"loss": 2.0}))
    )


@pytest.mark.parametrize("address", ["/", "/run?id={id}", "/system", "/new", "/settings"])
def test_a_page_says_since_when_the_server_does_not_answer_until_it_does(page, training, address):
    page.goto(address.format(id=training.id))
    becomes_live(page)
    assert not page.locator(NOTICE).count()
    page.context.set_offline(True)
    page.locator(NOTICE, has_text="The server has not answered since ").wait_for()
    page.context.set_offline(False)
    page.locator("#connection[hidden]").wait_for(state="attached")
    assert not page.evaluate("'lost' in document.documentElement.dataset")


def test_clocks_stand_still_and_actions_say_so_while_the_server_does_not_answer(page, training):
    page.goto(f"/run?id={training.id}")
    becomes_live(page)
    becomes_quiet(page)
    before, after = page.evaluate(CLOCKS_IN_A_MINUTE)
    assert before and all(first != last for first, last in zip(before, after, strict=True))
    page.context.set_offline(True)
    page.locator(NOTICE).wait_for()
    before, after = page.evaluate(CLOCKS_IN_A_MINUTE)
    assert before == after and before
    refused = page.evaluate("lathe.request('/api/queue').catch((error) => error.message)")
    assert refused == "The server does not answer. Try again when it does."
    page.context.set_offline(False)
    page.locator("#connection[hidden]").wait_for(state="attached")
    before, after = page.evaluate(CLOCKS_IN_A_MINUTE)
    assert all(first != last for first, last in zip(before, after, strict=True))


def test_a_server_that_takes_requests_and_does_not_answer_is_gone_too(page, training):
    page.goto(f"/run?id={training.id}")
    becomes_live(page)
    held = []
    page.route("**/healthz", lambda route: held.append(route))  # noqa: PLW0108 Playwright sets an attribute of it
    page.locator(NOTICE).wait_for()
    page.unroute_all(behavior="ignoreErrors")
    page.locator("#connection[hidden]").wait_for(state="attached")
