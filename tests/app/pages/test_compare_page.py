"""The page Compare in a real browser: the tables, copying, adding and removing runs, the switch of settings, the plots."""

import pytest
from browser import IN_BROWSER, opened, says
from played_run import SUMMARY, PlayedRun
from web import account, client

from app.pages.common.run_plots import color_of
from training.run_folder.events import Metrics
from worker.store import database, runs

pytestmark = IN_BROWSER

SCRIPT = "<script>window.harmed = true</script>"
HOSTILE = f"{SCRIPT}\u202egnp.exe " + "w" * 70


def trained(name, steps=20, end=True, **settings):
    run = PlayedRun(name, **settings).claim()
    run.report(*(Metrics(step=n, values={"loss": 3 - n / steps, "learning_rate": 1e-4}) for n in range(1, steps + 1)))
    return run.end(summary=SUMMARY) if end else run


def comparison(page):
    """The page with a comparison of two finished runs, and the runs."""
    first, second = trained("first"), trained("second", lora_r=64)
    page.goto(f"/compare?runs={first.id},{second.id}")
    says(page, "table.compared", "first", "second")
    return page, first, second


@pytest.fixture
def two(page):
    return comparison(page)


def plotted(page):
    """The labels of the runs in the plot of the training loss."""
    page.locator(".compare-plots .plot canvas").first.wait_for()
    return page.locator(".compare-plots .plot").first.locator(".plot-line span").all_inner_texts()


def column(page, heading):
    """The cells of a column of the results, from the top."""
    headings = page.locator("table.compared thead tr:last-child th").all_inner_texts()
    return page.locator(f"table.compared tbody tr > :nth-child({headings.index(heading) + 1})").all_inner_texts()


def copied(page, button, said):
    """What a button copies, after the note that says so."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator("button", has_text=button).click()
    says(page, ".compare-actions [role=status]", said)
    return page.evaluate("navigator.clipboard.readText()")


class TestOfOnePage:
    """Tests that share one loaded page, which they do not change."""

    @pytest.fixture(scope="class")
    @classmethod
    def two(cls, emptied_once, request):
        with opened(request.config, emptied_once[0]) as page:
            yield comparison(page)

    def test_a_table_of_results_the_differing_settings_and_plots_are_shown(self, two):
        page, *_ = two
        assert column(page, "LoRA r") == ["16", "64"]
        says(page, ".same", "294,912", "0.2364%", "3.5 GiB", "96.0%")
        assert not page.locator("table.settings").count()  # no second time
        assert page.locator("h1").inner_text() == "Compare 2 runs"
        assert plotted(page) == ["first", "second"]

    def test_markdown_csv_and_the_link_are_copied(self, two):
        page, first, second = two
        assert "| first | finished | LoRA |" in copied(page, "Copy Markdown", "Markdown copied.")
        assert copied(page, "Copy CSV", "CSV copied.").startswith("id,name,status,method,")
        assert copied(page, "Copy link", "Link copied.").endswith(f"/compare?runs={first.id},{second.id}")

    def test_csv_is_downloaded(self, two):
        page, *_ = two
        with page.expect_download() as download:
            page.locator("a", has_text="Download CSV").click()
        assert download.value.suggested_filename == "comparison.csv"


def test_a_run_is_removed_and_the_address_follows(two):
    page, _, second = two
    page.locator("a.remove").first.click()
    says(page, ".compared-runs", "Add another run to see what differs.")
    page.wait_for_function(f"location.search === '?runs={second.id}'")
    assert page.locator(".run-name bdi").all_inner_texts() == ["second"]
    page.reload()
    says(page, "table.compared", "second")
    page.locator(".plot-line", has_text="first").first.wait_for(state="detached")


def test_a_run_is_found_and_added_by_keyboard_finished_runs_first(page):
    PlayedRun("letters waiting")
    done = trained("letters done")
    page.goto("/compare")
    says(page, ".empty", "No runs to compare", "page Runs")
    page.locator(".add-run [role=combobox]").fill("letters")
    page.locator(".add-run li bdi", has_text="letters waiting").wait_for()
    assert page.locator(".add-run li bdi").all_inner_texts() == ["letters done", "letters waiting"]
    page.keyboard.press("Enter")
    says(page, "table.compared", "letters done")
    page.wait_for_function(f"location.search === '?runs={done.id}'")
    page.keyboard.type("waiting")
    page.locator(".add-run li", has_text="letters waiting").wait_for()
    page.locator(".add-run li", has_text="letters done").wait_for(state="detached")
    page.keyboard.press("Enter")
    says(page, "table.compared", "letters waiting")


@pytest.mark.nightly
def test_the_switch_shows_all_settings_and_is_kept_in_the_address(two):
    page, *_ = two
    page.locator("#all-settings").check()
    says(page, "table.settings", "Learning rate", "Model")
    assert page.locator("tr.differs th").all_inner_texts() == ["LoRA r"]
    page.wait_for_url("**&all=1")
    page.reload()
    says(page, "table.settings", "Learning rate")


@pytest.mark.nightly
def test_the_table_is_sorted_by_a_click_on_a_heading(page):
    ids = [trained(name).id for name in ("b", "c", "a")]
    page.goto(f"/compare?runs={','.join(ids)}")
    page.locator("table.compared th a", has_text="Name").click()
    page.locator("th[aria-sort=ascending]").wait_for()
    assert page.locator(".run-name bdi").all_inner_texts() == ["a", "b", "c"]
    assert plotted(page) == ["b", "c", "a"]  # in the order of the address


def test_the_runs_of_a_group_stand_together_in_both_tables_and_the_address_says_so(page):
    ids = [trained(name, lora_r=rank).id for name, rank in (("a", 64), ("b", 8), ("c", 64))]
    page.goto(f"/compare?runs={','.join(ids)}&order=name&descending=1")
    page.get_by_label("Group by").select_option(label="LoRA r")
    says(page, "tr.runs-group", "8", "64", "2 runs")
    page.wait_for_url("**&group=lora_r")
    assert page.locator(".run-name bdi").all_inner_texts() == ["b", "c", "a"]
    assert plotted(page) == ["a", "b", "c"]  # lines keep their order and colors
    page.locator("#all-settings").check()
    page.wait_for_url("**&all=1&order=name&group=lora_r")
    says(page, "table.settings", "Learning rate")
    headings = page.locator("table.settings thead th").all_inner_texts()
    assert [" ".join(heading.split()) for heading in headings] == ["8 1 run", "64 2 runs", "Setting", "b", "a", "c"]
    assert page.locator("table.settings tr.differs td").all_inner_texts() == ["8", "64", "64"]


def test_plots_are_arranged_for_each_account_in_all_browsers(page):
    compared = f"/compare?runs={trained('sums').id}"

    def titles(name):
        page.set_extra_http_headers(accounts[name])
        page.goto(compared)
        page.locator(".compare-plots canvas").first.wait_for()
        return page.locator(".plot h3:visible").all_inner_texts()

    accounts = {name: account(name) for name in ("mover", "reader")}
    assert titles("mover") == ["Training loss", "Learning rate"]
    page.get_by_label("Menu of the plot Training loss").click()
    with page.expect_response(lambda answer: answer.request.method == "PUT") as kept:
        page.get_by_role("button", name="Later").first.click()
    assert kept.value.ok and page.evaluate("localStorage.getItem('lathe-plots')") is None
    assert titles("mover") == ["Learning rate", "Training loss"]
    assert titles("reader") == ["Training loss", "Learning rate"]


def test_unknown_and_deleted_runs_are_named_and_the_others_shown(page):
    kept, deleted = trained("kept"), trained("deleted")
    with database.write() as session:
        runs.delete(session=session, run_id=deleted.id)
    page.goto(f"/compare?runs={deleted.id},{kept.id},<b>none")
    says(page, ".run-name", "kept")
    says(page, ".compared-runs", f"Run “{deleted.id}” does not exist.", "Run “<b>none” does not exist.")
    page.locator(".alert a").first.click()
    page.locator(".alert", has_text=deleted.id).wait_for(state="detached")


def test_runs_of_one_name_are_told_apart_by_their_ids(page):
    first, second = trained("same"), trained("same", lora_r=64)
    page.goto(f"/compare?runs={first.id},{second.id}")
    assert plotted(page) == [f"same ({run.id[:8]})" for run in (first, second)]


def test_the_legend_shows_the_dashes_of_runs_that_share_a_color(page):
    ids = [trained(f"r{number}", steps=2).id for number in range(11)]
    page.goto(f"/compare?runs={','.join(ids)}")
    plotted(page)
    dashed = page.locator(".compare-plots .plot").first.locator(".plot-line:has(i.dashed)").all_inner_texts()
    alike = {run_id for run_id in ids if sum(color_of(other) == color_of(run_id) for other in ids) > 1}
    assert len(dashed) == 1 and dashed[0].endswith("\n2")
    assert ids[int(dashed[0].removeprefix("r").split("\n")[0])] in alike


def test_without_a_script_the_field_adds_runs_and_links_sort(page):
    first, second = trained("b"), trained("a")
    text = client().get(f"/compare?runs={first.id}&add={second.id}").text
    assert f'href="?runs={first.id},{second.id}&amp;order=name"' in text
    text = client().get(f"/compare?runs={first.id},{second.id}&order=name").text
    assert text.index(">a</bdi>") < text.index(">b</bdi>") and 'aria-sort="ascending"' in text


def test_a_running_run_brings_new_points(page):
    other, run = trained("done"), trained("live", end=False)
    page.goto(f"/compare?runs={run.id},{other.id}")
    assert plotted(page) == ["live", "done"]
    asked = []
    page.on("request", lambda request: asked.append(request.url) if "/api/compare/series" in request.url else None)
    run.report(Metrics(step=21, values={"loss": 0.5}))
    page.locator(".plot").first.locator(".plot-line b", has_text="0.5").wait_for()
    says(page, "table.compared td.number", "0.5000")
    assert all(f"runs={run.id}&" in url and "first_step=" in url for url in asked) and asked
    with database.write() as session:
        runs.get(session=session, run_id=run.id).attempt += 1
    with page.expect_request(lambda request: "/api/compare/series" in request.url) as again:
        pass
    assert "first_step=" not in again.value.url  # a new attempt repeats steps


@pytest.mark.nightly
def test_scatter_and_parallel_coordinates_load_plotly_only_when_opened(page):
    ids = [
        trained(SCRIPT if rank == 8 else f"r {rank}", lora_r=rank, learning_rate=rank * 1e-5).id for rank in (4, 8, 16)
    ]
    page.goto(f"/compare?runs={','.join(ids)}")
    plotted(page)
    assert page.evaluate("window.Plotly === undefined")
    page.locator(".compare-relations summary").click()
    page.locator(".scatter .points path").first.wait_for()
    assert page.locator(".scatter .points path").count() == 3
    drawn = "document.querySelector('.parallel').data[0].dimensions.map((one) => one.label)"
    assert page.evaluate(drawn) == ["LoRA r", "Learning rate", "Final loss"]
    page.locator(".scatter .points path").nth(1).hover(force=True)
    says(page, ".scatter .hoverlayer", "<script>")
    page.locator(".compare-relations select").first.select_option("tokens_per_second")
    page.wait_for_function("document.querySelector('.scatter').layout.xaxis.title.text === 'Tokens/s'")
    assert page.evaluate("window.harmed") is None


def test_a_hostile_name_is_shown_as_text_and_does_not_widen_the_page(page):
    run, other = trained(HOSTILE), trained("plain", lora_r=8)
    page.goto(f"/compare?runs={run.id},{other.id}")
    says(page, ".run-name", "<script>")
    assert HOSTILE in plotted(page)
    assert page.evaluate("window.harmed") is None
    assert page.locator(".run-name a bdi").count() == 2
    assert page.locator("a.remove").first.get_attribute("href") == f"?runs={other.id}"
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_settings_that_differ_are_columns_by_which_the_runs_are_sorted(page):
    ids = [
        trained(name, lora_r=rank, target_modules=modules).id
        for name, rank, modules in (("a", 64, "q_proj"), ("b", 8, "all-linear"), ("c", 16, "k_proj,q_proj"))
    ]
    page.goto(f"/compare?runs={','.join(ids)}")
    assert column(page, "LoRA r") == ["64", "8", "16"]
    page.locator("table.compared th a", has_text="LoRA r").click()
    page.locator("th[aria-sort=ascending]").wait_for()
    assert page.locator(".run-name bdi").all_inner_texts() == ["b", "c", "a"]
    page.goto(f"/compare?runs={','.join(ids)}&order=target_modules&descending=1")
    assert page.locator(".run-name bdi").all_inner_texts() == ["a", "c", "b"]


def test_many_settings_that_differ_are_rows_of_a_table_of_their_own(page):
    other = {"lora_r": 8, "lora_alpha": 4, "lora_dropout": 0.1, "learning_rate": 1e-3, "seed": 1, "max_length": 64}
    ids = [trained("a").id, trained("b", **other, weight_decay=0.1, warmup=0.5, max_steps=50).id]
    page.goto(f"/compare?runs={','.join(ids)}")
    assert page.locator("table.settings tbody th").count() >= 9
    assert "LoRA r" not in page.locator("table.compared").first.locator("thead").inner_text()


def test_a_phone_shows_every_run_with_its_settings_and_results_and_sorts_them(page):
    ids = [trained(f"run {rank}", lora_r=rank).id for rank in (64, 8, 16)]
    page.set_viewport_size({"width": 390, "height": 800})
    page.goto(f"/compare?runs={','.join(ids)}")
    rows = page.locator("table.compared tbody tr")
    rows.first.wait_for()
    assert all(row.is_visible() for row in rows.all())
    assert [row.locator("[data-label='LoRA r']").inner_text() for row in rows.all()] == ["64", "8", "16"]
    edges = [row.bounding_box() for row in rows.all()]
    assert all(edge["x"] >= 0 and edge["x"] + edge["width"] <= 390 for edge in edges)
    page.get_by_label("Sort by").select_option(label="LoRA r")
    page.wait_for_url("**&order=lora_r")
    says(page, "table.compared tbody tr:first-child", "run 8")
    page.get_by_label("Reverse the order").click()
    says(page, "table.compared tbody tr:first-child", "run 64")
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_legend_names_every_run_and_a_line_is_found_by_pointing_at_it_or_at_its_name(page):
    names = [f"number {number} is a run with a name of some length" for number in range(12)]
    ids = []
    for level, name in enumerate(names):
        run = PlayedRun(name).claim()
        run.report(*(Metrics(step=step, values={"loss": 1.0 + level}) for step in range(1, 60)))
        ids.append(run.end(summary=SUMMARY).id)
    page.goto(f"/compare?runs={','.join(ids)}")
    plot = page.locator(".compare-plots .plot").first
    plot.locator("canvas").wait_for()
    more = plot.locator(".plot-more")
    hidden = int(more.inner_text().removeprefix("+ "))
    assert 0 < hidden < 12
    more.click()
    assert more.inner_text() == "Fewer"
    bottom = plot.locator(".plot-canvas").bounding_box()["y"]
    assert all(name.bounding_box()["y"] < bottom for name in plot.locator(".plot-line").all())
    plot.locator(".plot-line", has_text="number 4").hover()
    says(page, ".plot-line.pointed", "number 4")
    more.click()
    over = plot.locator(".u-over")
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    low, high = 1.0, 12.0
    share = (high - 8.0) / (high - low)  # of the run number 7
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] * share)
    says(page, ".plot-pointed", "number 7")
    page.mouse.move(0, 0)
    page.locator(".plot-pointed").wait_for(state="detached")
