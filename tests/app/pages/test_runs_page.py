"""The page Runs in a real browser: the filter, selected runs, and the queue."""

import re

import pytest
from browser import IN_BROWSER, says
from held_runs import now_of
from played_run import PlayedRun

from worker.store import database, runs, waiting
from worker.store.listed import run_list
from worker.store.tables import Run, Status

pytestmark = IN_BROWSER

HOSTILE = "<b onmouseover=harmed()>محاولة</b>"


def pick(page, name):
    page.locator("table.runs tr", has_text=name).locator("input[data-pick]").click()


def act(page, action):
    page.locator(f".selection [data-action={action}]").click()


LISTED = "ids => [...document.querySelectorAll('input[data-pick]')].map(box => box.dataset.pick).sort().join() === ids.join()"


def open_list(page):
    """Opens the page and waits for all runs: for a second, the server may list those of the test before."""
    page.goto("/")
    with database.read() as session:
        page.wait_for_function(LISTED, arg=sorted(run.id for run in run_list.listing(session=session)))


def names(page):
    return page.locator("table.runs td.name a").all_inner_texts()


def waits_for_queue(page, *order):
    page.wait_for_function(
        "names => [...document.querySelectorAll('table.queue td.name a')].map(a => a.textContent).join() === names.join()"
        " && !document.querySelector('[data-busy]')",
        arg=list(order),
    )


def test_selected_runs_are_tagged_and_a_click_on_the_tag_filters(page):
    PlayedRun("sums").claim().end(), PlayedRun("letters").claim().end(), PlayedRun(HOSTILE).claim().end()
    open_list(page)
    pick(page, "sums")
    pick(page, HOSTILE)
    says(page, ".selection", "2 selected")
    act(page, "edit")
    says(page, ".dialog h2", "Tags of 2 runs")
    page.locator("#edit-tags textarea, #edit-tags input").fill("Paper, lr sweep")
    page.locator("#save-edit").click()
    says(page, ".outcome", "2 runs changed.")
    page.locator(".chip", has_text="lr sweep").first.click()
    page.wait_for_url(re.compile("search=tag%3A%22lr\\+sweep%22"))
    page.wait_for_function("document.querySelectorAll('table.runs tbody tr').length === 2")  # not between two states
    assert sorted(names(page)) == sorted([HOSTILE, "sums"])


@pytest.mark.nightly
def test_a_form_that_is_refused_stays_open_with_what_was_typed(page):
    PlayedRun("sums").claim().end()
    open_list(page)
    pick(page, "sums")
    act(page, "edit")
    page.locator("#edit-notes textarea").fill("worth keeping")
    page.locator("#edit-tags textarea, #edit-tags input").fill("x" * 41)
    page.locator("#save-edit").click()
    says(page, ".dialog .alert", "1 run unchanged.", "Use at most 40")
    assert page.locator("#edit-notes textarea").input_value() == "worth keeping"


def test_a_wrong_filter_is_named_and_the_list_stays(page):
    PlayedRun("sums").claim().end()
    open_list(page)
    says(page, "table.runs", "sums")
    page.locator("#search textarea, #search input").fill("metod:lora")
    says(page, ".alert", "metod", "Did you mean method")
    assert names(page) == ["sums"]
    page.locator("#search textarea, #search input").fill("method:lora")
    page.locator(".alert").wait_for(state="detached")
    assert names(page) == ["sums"]


def test_delete_tells_what_is_lost_and_keeps_what_runs(page):
    ended, running = PlayedRun("ended").claim().end(), PlayedRun("running").claim()
    open_list(page)
    page.locator("input[data-pick-all]").click()
    act(page, "delete")
    says(
        page,
        ".dialog",
        "Delete 1 run?",
        "Not deleted, because queued or running: 1 run.",
        "the results of 1 finished run",
    )
    page.locator("#confirm-action").click()
    says(page, ".outcome", "1 run deleted.", "1 run unchanged", "Stop it before you delete it")
    page.locator("table.runs a", has_text="ended").wait_for(state="detached")
    says(page, ".selection", "1 selected")
    with database.read() as session:
        assert session.get(Run, ended.id) is None
        assert session.get(Run, running.id).status is Status.RUNNING


@pytest.mark.nightly
def test_an_archived_run_leaves_the_list_and_is_found_by_its_filter(page):
    PlayedRun("old").claim().end(), PlayedRun("new").claim().end()
    open_list(page)
    pick(page, "old")
    act(page, "archive")
    says(page, ".outcome", "1 run archived.")
    page.locator("table.runs a", has_text="old").wait_for(state="detached")
    page.goto("/?search=is%3Aarchived")
    says(page, "table.runs", "old")


def test_pages_groups_and_columns_are_kept_in_the_address_and_columns_in_the_browser(page):
    for number in range(53):
        PlayedRun(f"run {number}", lora_r=8 if number % 2 else 16)
    page.goto("/")
    says(page, ".pager", "1 to 50 of 53 runs")
    page.locator(".pager button", has_text="Next").click()
    says(page, ".pager", "51 to 53 of 53 runs")
    page.wait_for_url("**/?page=2")
    page.locator("summary", has_text="Columns").click()
    page.locator("[data-column=owner]").click()
    page.locator("[data-add-column]").select_option("lora_r")
    says(page, "table.runs th", "LoRA r")
    page.goto("/")
    says(page, "table.runs th", "LoRA r")
    assert page.locator("table.runs th", has_text="Owner").count() == 0
    page.locator("[data-group]").select_option("method")
    says(page, "table.runs tr.group", "53 runs")


def test_the_queue_is_ordered_by_buttons_and_by_drag_and_a_held_run_says_so(page):
    first, second, third = (PlayedRun(name) for name in ("first", "second", "third"))
    open_list(page)
    waits_for_queue(page, "first", "second", "third")
    page.get_by_label("Move to the front: third").click()
    waits_for_queue(page, "third", "first", "second")
    page.get_by_label("Move down: first").click()
    waits_for_queue(page, "third", "second", "first")
    rows = page.locator("table.queue tbody tr")
    rows.nth(2).drag_to(rows.nth(0), target_position={"x": 200, "y": 4})
    waits_for_queue(page, "first", "third", "second")
    with database.read() as session:
        assert [run.name for run in waiting.waiting(session=session)] == ["first", "third", "second"]
    page.get_by_label("Priority of second").select_option("high")
    waits_for_queue(page, "second", "first", "third")
    page.locator("table.queue tr", has_text="third").locator("button", has_text="Hold").click()
    says(page, "table.queue tr.held", "third", "held")
    assert now_of(third).held
    page.locator("button", has_text="Pause the queue").click()
    says(page, ".queue-panel", "The queue is paused")
    assert [now_of(run).status for run in (first, second)] == [Status.QUEUED, Status.QUEUED]
    page.locator("button", has_text="Resume the queue").click()
    page.locator(".queue-panel .notice", has_text="The queue is paused").wait_for(state="detached")


def test_a_live_row_changes_without_the_list_being_sent_again(page):
    run = PlayedRun("live").claim()
    open_list(page)
    says(page, "table.runs", "live")
    pick(page, "live")
    page.evaluate("document.querySelector('table.runs').marked = true")
    with database.write() as session:
        stored = session.get(Run, run.id)
        stored.step, stored.total_steps, stored.final_loss = 30, 100, 1.25
    says(page, "table.runs", "30%", "1.2500")
    assert page.evaluate("document.querySelector('table.runs').marked")
    assert page.locator("input[data-pick]").first.is_checked()


@pytest.mark.nightly
def test_a_long_name_does_not_widen_the_page(page):
    run = PlayedRun("other")
    with database.write() as session:
        runs.describe(session=session, run_id=run.id, name="a" * 200)
    open_list(page)
    says(page, "table.queue", "a" * 200)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
