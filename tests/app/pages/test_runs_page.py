"""The page Runs: the filter, the list, selected runs, and the queue."""

import re

import pytest
from browser import IN_BROWSER, says
from held_runs import now_of
from patience import eventually
from played_run import PlayedRun
from web import client

from worker.store import database, evaluations, run_list, runs, waiting
from worker.store.tables import Run, Status

HOSTILE = "<b onmouseover=harmed()>محاولة</b>"


def list_of(query="", **cookies):
    """The HTML of the list, below the queue and the menus."""
    web = client()
    web.cookies.update(cookies)
    return web.get(f"/{query}").text.partition('data-part="list">')[2].partition('<div class="selection"')[0]


def names_in(text):
    return re.findall(r'<a href="/run\?id=\w+" title="([^"]*)"', text)


def queue():
    return client().get("/").text.partition('data-part="queue">')[2].partition('<form id="filter"')[0]


class TestItsHtml:
    def test_an_empty_lathe_offers_three_ways_to_begin(self, home):
        text = list_of()
        assert "No runs yet" in text
        assert 'data-do="POST /api/runs/sample"' in text and 'data-then="/run?id={id}"' in text
        assert 'href="/new"' in text and 'href="/import"' in text

    def test_text_of_people_is_escaped(self, home):
        run = PlayedRun(HOSTILE).claim().end()
        with database.write() as session:
            runs.describe(session=session, run_id=run.id, tags=[HOSTILE], notes=HOSTILE)
        text = list_of("?columns=name,notes,data&group=model")
        assert "<b onmouseover" not in text and text.count("&lt;b onmouseover=harmed()&gt;") > 3

    def test_a_heading_sorts_by_its_column_and_the_next_click_the_other_way(self, home):
        for name in ("b", "c", "a"):
            PlayedRun(name)
        assert names_in(list_of("?order=name&ascending=1")) == ["a", "b", "c"]
        up = list_of("?order=name&ascending=1&search=name:a")
        assert 'aria-sort="ascending"><a href="?search=name%3Aa&amp;order=name">Name' in up
        assert names_in(list_of("?order=name")) == ["c", "b", "a"]
        assert 'aria-sort="none"><a href="?order=model&amp;ascending=1">Model' in list_of()

    def test_a_wrong_filter_is_named_and_no_run_is_shown_for_it(self, home):
        PlayedRun("sums").claim().end()
        text = list_of("?search=metod:lora")
        assert 'role="alert"' in text and "metod" in text and "Did you mean method" in text
        assert names_in(text) == []

    def test_no_run_that_matches_is_told_with_the_filter(self, home):
        PlayedRun("sums").claim().end()
        assert "No failed runs match “sum”." in list_of("?search=sum&status=failed")
        assert names_in(list_of("?search=sum&status=finished")) == ["sums"]
        assert "1 matching run on earlier pages" in list_of("?page=2")

    def test_pages_follow_each_other_with_the_rest_of_the_address(self, home):
        for number in range(53):
            PlayedRun(f"run {number}")
        text = list_of("?page=2&order=name&ascending=1")
        assert "51 to 53 of 53 runs" in text and len(names_in(text)) == 3
        links = re.findall(r'<a class="button small" (.*?)>(\w+)</a>', text)
        assert [label for _, label in links] == ["First", "Previous", "Next", "Last"]
        assert links[1][0] == 'href="?order=name&amp;ascending=1"'
        assert links[2][0] == links[3][0] == 'role="link" aria-disabled="true"'

    def test_groups_have_their_value_the_number_of_their_runs_and_the_best_evaluation_loss(self, home):
        best = {
            PlayedRun("one", lora_r=8).id: 1.5,
            PlayedRun("two", lora_r=8).id: 1.25,
            PlayedRun("other", lora_r=64).id: None,
        }
        with database.write() as session:
            for run_id, loss in best.items():
                session.get(Run, run_id).best_loss = loss
        text = list_of("?group=lora_r&order=name")
        assert re.findall(r"<summary><b>(.*?)</b>\s*(.*?)</summary>", text) == [
            ("8", "<span>2 runs</span> <span>best eval loss 1.2500</span>"),
            ("64", "<span>1 run</span>"),
        ]
        assert names_in(text) == ["two", "one", "other"]
        assert "<summary><b>none</b>" in list_of("?group=tag")

    def test_runs_can_be_grouped_by_the_settings_in_which_they_differ(self, home):
        PlayedRun("one", lora_r=8), PlayedRun("two", lora_r=16)
        choice = (
            client()
            .get("/?group=seed")
            .text.partition('<optgroup label="Settings that differ">')[2]
            .partition("</optgroup>")
        )
        assert re.findall(r'value="(\w+)"( selected)?', choice[0]) == [("lora_r", ""), ("seed", " selected")]
        assert "optgroup" not in client().get("/?search=one").text

    def test_settings_that_vary_take_the_places_of_columns_that_say_the_same_of_all_runs(self, home):
        heads = re.compile(r"<th[^>]*><(?:a|span)[^>]*>(.*?)</")
        PlayedRun("one")
        assert "LoRA r" not in heads.findall(list_of())
        for rank in (4, 8):
            PlayedRun(f"rank {rank}", lora_r=rank, learning_rate=rank / 1000)
        shown = heads.findall(list_of())
        assert {"LoRA r", "Learning rate"} <= {*shown} and not {"Model", "Method", "Owner"} & {*shown}
        PlayedRun("another model", model="models/other")
        assert "Model" in heads.findall(list_of())
        assert "LoRA r" not in heads.findall(list_of("?columns=name,model"))

    def test_columns_are_those_of_the_address_else_those_that_the_browser_keeps(self, home):
        PlayedRun("sums", lora_r=24)
        heads = re.compile(r"<th[^>]*><(?:a|span)[^>]*>(.*?)</")
        kept = {"lathe_columns": "name%2Clora_r%2Cnone"}
        assert heads.findall(list_of(**kept)) == ["Name", "LoRA r"]
        assert heads.findall(list_of("?columns=id&columns=name", **kept)) == ["Id", "Name"]
        assert ">24<" in list_of(**kept)
        assert len(heads.findall(list_of(lathe_columns="nothing"))) == 12

    def test_runs_of_one_name_have_a_short_id_and_names_of_a_sweep_show_their_end(self, home):
        twins = [PlayedRun("twin").id for _ in range(2)]
        PlayedRun("single")
        PlayedRun("Rank and rate · lr=1e-04 r=8")
        text = list_of()
        for run_id in twins:
            assert f">{run_id[:8]}</span>" in text and f">{run_id[:8]}</span>" in queue()
        assert text.count("The beginning of its id") == 2
        assert '<span>Rank and rate</span><span class="end"> · lr=1e-04 r=8</span>' in text

    def test_the_queue_names_what_uses_a_device_and_why_a_run_waits(self, home):
        finished, held, first = PlayedRun("sums").claim().end(), PlayedRun("held"), PlayedRun("first")
        with database.write() as session:
            waiting.hold(session=session, run_id=held.id, held=True)
        assert "as soon as a device is free</td>" in queue() and "held</td>" in queue()
        with database.write() as session:
            item = evaluations.create(session=session, run_id=finished.id, request={}, owner="local")
            claim = {"owner": "host:1:1", "device": "host/cpu", "lease_seconds": 60}
            assert evaluations.claim(session=session, evaluation_id=item.id, **claim)
        assert "as soon as a device is free: an evaluation of sums uses one" in queue()
        assert f'data-do="PATCH /api/runs/{first.id}"' in queue()
        with database.write() as session:
            waiting.pause(session=session, by="carol")
        assert "(by carol, <time" in queue() and queue().count("paused</td>") == 1

    def test_the_gradio_pages_are_served_beside_it(self, home):
        web = client()
        assert "gradio-app" not in web.get("/").text
        assert "<gradio-app" in web.get("/new").text
        assert web.get("/config").json()["dependencies"]


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
    return page.locator("table.runs td.name a:not(.chip)").all_text_contents()


def stored_queue():
    with database.read() as session:
        return [run.name for run in waiting.waiting(session=session)]


def waits_for_queue(page, *order):
    page.wait_for_function(
        "names => [...document.querySelectorAll('table.queue td.name a')].map(a => a.textContent).join() === names.join()",
        arg=list(order),
    )


class TestInChromium:
    pytestmark = IN_BROWSER

    def test_the_example_runs_after_one_click(self, page):
        page.goto("/")
        page.get_by_role("button", name="Start the example").click()
        page.wait_for_url("**/run?id=*")

    def test_selected_runs_are_tagged_and_a_click_on_the_tag_filters(self, page):
        PlayedRun("sums").claim().end(), PlayedRun("letters").claim().end(), PlayedRun(HOSTILE).claim().end()
        open_list(page)
        pick(page, "sums")
        pick(page, HOSTILE)
        says(page, ".selection", "2 selected")
        act(page, "edit")
        dialog = page.get_by_role("dialog", name="Tags of 2 runs")
        dialog.get_by_label("Tags").fill("Paper, lr sweep")
        dialog.get_by_role("button", name="Save").click()
        says(page, ".outcome", "2 runs changed.")
        page.locator(".chip", has_text="lr sweep").first.click()
        page.wait_for_url(re.compile("search=tag%3A%22lr\\+sweep%22"))
        page.wait_for_function("() => document.querySelectorAll('table.runs tbody tr').length === 2")
        assert sorted(names(page)) == sorted([HOSTILE, "sums"])
        assert page.get_by_label("Search").input_value() == 'tag:"lr sweep"'

    @pytest.mark.nightly
    def test_a_form_that_is_refused_stays_open_with_what_was_typed(self, page):
        PlayedRun("sums").claim().end()
        open_list(page)
        pick(page, "sums")
        act(page, "edit")
        dialog = page.get_by_role("dialog", name="Edit the run")
        dialog.get_by_label("Notes").fill("worth keeping")
        dialog.get_by_label("Tags").fill("x" * 41)
        dialog.get_by_role("button", name="Save").click()
        says(page, "#edit .alert", "1 run unchanged.", "at most 40")
        assert dialog.get_by_label("Notes").input_value() == "worth keeping"

    def test_what_is_typed_filters_and_the_address_keeps_it(self, page):
        PlayedRun("sums").claim().end(), PlayedRun("letters").claim().end(Status.FAILED, reason="it broke")
        open_list(page)
        page.keyboard.press("/")
        page.keyboard.type("sum")
        page.locator("table.runs", has_text="letters").wait_for(state="detached")
        assert names(page) == ["sums"]
        assert page.evaluate("location.search") == "?search=sum"
        page.locator("table.runs th a", has_text="Name").click()
        page.locator("th[aria-sort=ascending]", has_text="Name").wait_for()
        page.get_by_label("Search").fill("")
        page.locator("table.runs", has_text="letters").wait_for()
        assert page.evaluate("location.search") == "?order=name&ascending=1"
        page.locator("#status label", has_text="Failed").click()
        page.locator("table.runs", has_text="sums").wait_for(state="detached")
        page.go_back()
        page.locator("table.runs", has_text="sums").wait_for()
        assert page.get_by_label("All", exact=True).is_checked()

    def test_delete_tells_what_is_lost_and_keeps_what_runs(self, page):
        ended, running = PlayedRun("ended").claim().end(), PlayedRun("running").claim()
        open_list(page)
        page.locator("input[data-pick-all]").click()
        act(page, "delete")
        says(
            page,
            "#ask",
            "Delete 1 run?",
            "This frees 0 B",
            "Not deleted, because queued or running: 1 run.",
            "the results of 1 finished run",
        )
        page.locator("#ask [data-confirm]").click()
        says(page, ".outcome", "1 run deleted.")
        page.locator("table.runs a", has_text="ended").wait_for(state="detached")
        says(page, ".selection", "1 selected")
        with database.read() as session:
            assert session.get(Run, ended.id) is None
            assert session.get(Run, running.id).status is Status.RUNNING

    def test_on_a_phone_a_run_is_looked_at_and_stopped(self, page):
        run = PlayedRun("training").claim()
        PlayedRun("queued" * 20)
        page.set_viewport_size({"width": 390, "height": 800})
        try:
            open_list(page)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
            page.locator("#sort-menu summary").click()
            page.locator("#sort-menu a", has_text="Name").click()
            page.locator("#sort-menu a[aria-current]", has_text="Name").wait_for(state="attached")
            pick(page, "training")
            act(page, "stop")
            says(page, "#ask", "Stop 1 run?", "saves a checkpoint")
            page.locator("#ask [data-confirm]").click()
            says(page, ".status", "stopping")
        finally:
            page.set_viewport_size({"width": 1280, "height": 900})
        assert now_of(run).request == "stop"

    @pytest.mark.nightly
    def test_an_archived_run_leaves_the_list_and_is_found_by_its_filter(self, page):
        PlayedRun("old").claim().end(), PlayedRun("new").claim().end()
        open_list(page)
        pick(page, "old")
        act(page, "archive")
        says(page, ".outcome", "1 run archived.")
        page.locator("table.runs a", has_text="old").wait_for(state="detached")
        page.goto("/?search=is%3Aarchived")
        says(page, "table.runs", "old")

    def test_pages_groups_and_columns_are_kept_in_the_address_and_columns_in_the_browser(self, page):
        for number in range(53):
            PlayedRun(f"run {number}", lora_r=8 if number % 2 else 16)
        page.goto("/")
        says(page, ".pager", "1 to 50 of 53 runs")
        page.locator(".pager a", has_text="Next").click()
        says(page, ".pager", "51 to 53 of 53 runs")
        page.wait_for_url("**/?page=2")
        page.locator("summary", has_text="Columns").click()
        page.locator("[name=columns][value=duration]").click()
        page.locator("[data-add-column]").select_option("seed")
        says(page, "table.runs th", "Seed")
        page.goto("/")
        says(page, "table.runs th", "Seed", "LoRA r")  # which varied, and was kept with the others
        assert page.locator("table.runs th", has_text="Duration").count() == 0
        page.get_by_label("Group by").select_option("method")
        says(page, "table.runs tr.group", "53 runs")

    def test_runs_are_grouped_by_a_setting_and_a_folded_group_stays_folded(self, page):
        small, large = PlayedRun("small", lora_r=8).claim(), PlayedRun("large", lora_r=64)
        open_list(page)
        page.get_by_label("Group by").select_option("lora_r")
        page.wait_for_url("**/?group=lora_r")
        says(page, "table.runs tr.group", "8", "1 run")
        page.locator("tr.group summary").first.click()
        page.locator("input[data-pick-all]").click()
        says(page, ".selection", "1 selected")  # not the run that is not seen
        with database.write() as session:
            session.get(Run, small.id).best_loss = 1.25
            session.get(Run, large.id).best_loss = 2.5
        says(page, "table.runs", "best eval loss 1.2500", "best eval loss 2.5000")
        assert (
            page.locator(f"[data-pick={small.id}]").is_hidden() and page.locator(f"[data-pick={large.id}]").is_visible()
        )
        page.reload()
        assert page.get_by_label("Group by").input_value() == "lora_r"
        assert page.locator(f"[data-pick={small.id}]").is_visible()

    def test_the_queue_is_ordered_by_buttons_and_by_drag_and_a_held_run_says_so(self, page):
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
        assert eventually(lambda: stored_queue() == ["first", "third", "second"])
        page.get_by_label("Priority of second").select_option("high")
        waits_for_queue(page, "second", "first", "third")
        assert page.get_by_label("Priority of first").input_value() == "normal"
        page.locator("table.queue tr", has_text="third").locator("button", has_text="Hold").click()
        says(page, "table.queue tr.held", "third", "held")
        assert now_of(third).held
        page.locator("button", has_text="Pause the queue").click()
        says(page, ".queue-panel", "The queue is paused")
        assert [now_of(run).status for run in (first, second)] == [Status.QUEUED, Status.QUEUED]
        page.locator("button", has_text="Resume the queue").click()
        page.locator(".queue-panel .notice", has_text="The queue is paused").wait_for(state="detached")

    def test_a_row_is_dragged_on_while_the_queue_changes(self, page):
        first = PlayedRun("first")
        PlayedRun("second")
        open_list(page)
        waits_for_queue(page, "first", "second")
        above, below = (page.locator("table.queue tbody tr").nth(index).bounding_box() for index in range(2))
        page.mouse.move(below["x"] + 200, below["y"] + 10)
        page.mouse.down()
        for offset in (6, 4):  # the first move begins the drag
            page.mouse.move(above["x"] + 200, above["y"] + offset)
        waits_for_queue(page, "second", "first")
        with database.write() as session:
            runs.describe(session=session, run_id=first.id, name="renamed")
        waits_for_queue(page, "second", "renamed")
        page.mouse.up()
        assert eventually(lambda: stored_queue() == ["second", "renamed"])

    def test_a_live_row_changes_without_the_list_being_sent_again(self, page):
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
        assert page.evaluate("document.activeElement.matches('[data-pick]')")

    @pytest.mark.nightly
    def test_a_long_name_does_not_widen_the_page(self, page):
        run = PlayedRun("other")
        with database.write() as session:
            runs.describe(session=session, run_id=run.id, name="a" * 200)
        open_list(page)
        says(page, "table.queue", "a" * 60)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
