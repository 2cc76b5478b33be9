"""The pages Settings and Tour in a real browser."""

import re
from contextlib import contextmanager

import pytest
from browser import IN_BROWSER, field, says
from played_run import PlayedRun
from receivers import hooks
from run_files import folder_of, result
from sqlmodel import delete, select

from worker.results import packing
from worker.store import accounts, database
from worker.store.tables import Account, NotificationChannel, Preferences, Run, Status

pytestmark = IN_BROWSER


@pytest.fixture
def page(page):
    yield page
    with database.write() as session:
        for table in (NotificationChannel, Preferences, Account):
            session.exec(delete(table))


@contextmanager
def recorded(page):
    """What the page shows as notifications: the browser's own class, which also notes the title."""
    page.context.grant_permissions(["notifications"])
    page.add_init_script(
        "window.shown = []; const Own = Notification; window.Notification = class extends Own "
        "{ constructor(title, options) { super(title, options); window.shown.push(title); } };"
    )
    yield
    page.context.clear_permissions()


def test_a_webhook_is_added_and_a_test_reports_the_real_outcome(page):
    with hooks() as receiver:
        page.goto("/")
        page.locator("nav a[href='/settings']").click()
        page.locator("#channel-address").fill("not an address")
        page.get_by_role("button", name="Add", exact=True).first.click()
        says(page, ".alert", "is neither a URL nor an e-mail address")
        page.locator("#channel-address").fill(receiver.url)
        page.get_by_role("button", name="Add", exact=True).first.click()
        says(page, "ul.channels", f"http://127.0.0.1:{receiver.port}/…part")
        page.get_by_role("button", name="Send a test to").click()
        says(page, ".outcome.good", "Test delivered")
        receiver.statuses.append(404)
        page.get_by_role("button", name="Send a test to").click()
        says(page, ".outcome.bad", "answered with status 404: said by the receiver")
        says(page, "table.messages", "Not delivered.")
        assert "verysecretpart" not in page.content()
    boxes = page.locator("li[data-channel] .chip input")
    with page.expect_response(lambda answer: answer.request.post_data_json == {"events": ["failed", "stopped"]}):
        for event in ("finished", "diverged", "stopped"):  # at once: a press must not take back those before it
            page.locator(f"li[data-channel] .chip:has([value={event}])").click()
    page.reload()
    assert [box.get_attribute("value") for box in boxes.all() if box.is_checked()] == ["failed", "stopped"]
    page.get_by_role("button", name="Remove http").click()
    says(page, "#ask", "Remove this address?")
    page.locator("#ask [data-confirm]").click()
    page.locator("li[data-channel]").wait_for(state="detached")


def test_the_browser_shows_a_message_after_it_was_allowed_with_a_press(page):
    with recorded(page):
        page.goto("/settings")
        says(page, "[data-browser]", "shows nothing until you allow it")
        page.locator("[data-allow]").click()
        page.locator("[data-browser] .chip:has(:checked)", has_text="Failed").wait_for()
        PlayedRun("broken").claim().end(Status.FAILED, error={"message": "It broke."})
        page.wait_for_function("() => window.shown.includes('broken failed')")
        page.reload()
        page.locator("[data-test-browser]").click()
        page.wait_for_function("() => window.shown.includes('Lathe can reach you here')")
        assert "broken failed" not in page.evaluate("window.shown")  # once, not again by the next page


def test_colleagues_are_added_with_a_token_shown_once_and_removed_after_a_question(page):
    page.goto("/settings")
    says(page, "table.folders", "Data folder")
    page.locator("#user-name").fill("anna")
    page.locator("#user-name").press("Enter")
    says(page, "#told", "The new token of anna.")
    token = page.locator("#told code").last.inner_text()
    with database.read() as session:
        assert accounts.of_token(session=session, token=token).name == "anna"
    page.reload()
    says(page, "table.users", "anna")
    assert token not in page.content()
    page.get_by_role("button", name="Remove anna").click()
    says(page, "#ask", "Remove anna?")
    page.locator("#ask [data-confirm]").click()
    page.locator("table.users").wait_for(state="detached")
    with database.read() as session:
        assert accounts.of_token(session=session, token=token) is None


@pytest.mark.nightly
def test_a_new_form_begins_with_the_default_model(page):
    page.goto("/settings")
    says(page, "table.folders", "Data folder")
    page.locator("#default-model").fill("org/my-model")
    page.locator("#default-model").press("Enter")
    says(page, "#told", "Saved.")
    page.goto("/new")
    page.wait_for_function("document.querySelector('#setting-model input')?.value === 'org/my-model'")
    assert field(page, "model").input_value() == "org/my-model"


def test_colors_and_times_are_those_chosen_in_this_browser(page):
    page.goto("/settings")
    page.locator("#browser-theme").select_option("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 21)"
    with page.expect_navigation():
        page.locator("#browser-zone").select_option("UTC")
    assert page.locator("html").get_attribute("data-theme") == "dark"
    PlayedRun("one")
    page.goto("/new")  # a page with Gradio
    page.locator("#start").wait_for()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(14, 17, 21)"
    page.goto("/settings")
    assert page.locator("#browser-zone").input_value() == "UTC"
    page.locator("#browser-theme").select_option("")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(244, 245, 247)"


@pytest.mark.nightly
def test_the_tour_starts_the_sample_run_and_diagnoses_a_pasted_log(page):
    page.goto("/")
    page.locator(".empty a", has_text="Take the tour").click()
    says(page, "section.step", "Start a run", "after step 1", "after a run has finished")
    page.get_by_role("link", name="Diagnose an example").click()
    page.get_by_role("button", name="Diagnose", exact=True).click()
    says(page, ".diagnosis", "memory")
    page.goto("/start")
    says(page, "section.step.done", "Find out why a run failed")
    page.locator("button", has_text="Start the sample run").click()
    page.wait_for_url(re.compile(r"/run\?id="))
    with database.read() as session:
        run = session.exec(select(Run)).one()
    assert (run.name, run.status) == ("Orders to JSON", Status.QUEUED)
    page.goto("/start")
    says(page, "section.step.done", "Start a run")
    assert page.locator("section.step.done").count() == 2


def test_the_tour_downloads_the_adapter_of_a_finished_run(page):
    finished = PlayedRun("done").claim()
    result(finished.id)
    packing.pack_results(folder_of(finished.id), lambda _: None)
    finished.end()
    page.goto("/start")
    with page.expect_download() as download:
        page.locator("button", has_text="Download the adapter").click()
    assert download.value.suggested_filename.endswith(".zip")
    says(page, "section.step.done", "Take the adapter away")
