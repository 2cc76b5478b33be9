"""The page Run in a real browser: plots, stream and log."""

import math

import pytest
from browser import IN_BROWSER, opened, says
from played_run import GIB, PlayedRun

from training.run_folder.events import CheckpointSaved, Metrics, PhaseStarted, Planned, Resumed

pytestmark = IN_BROWSER


def training_run():
    """A run of 3000 steps on two ranks that is training, with a checkpoint at step 1000."""
    plan = Planned(
        total_steps=4000, start_step=0, train_rows=19, eval_rows=1, skipped_rows=0, truncated_rows=0, world_size=2,
        engine="DeepSpeedEngine", zero_stage=2, precision="bf16", trainable_parameters=10, total_parameters=1000,
        target_modules=["q_proj"],
    )  # fmt: skip
    points = [
        Metrics(step=n, time=1000.0 + n, values={"loss": 1 + 3 * math.exp(-n / 900), "tokens": 100.0 * n})
        for n in range(1, 3001)
    ]
    memory = [
        Metrics(step=n, rank=rank, values={"memory_peak": GIB * (1 + rank)})
        for n in range(1, 3001, 50)
        for rank in range(2)
    ]
    started = (
        PlayedRun("long").claim().report(PhaseStarted(phase="loading model"), PhaseStarted(phase="training"), plan)
    )
    return started.report(*points, *memory, CheckpointSaved(step=1000, path="checkpoint-1000", bytes=2**20))


def shown(page, run):
    page.goto(f"/run?id={run.id}")
    page.wait_for_function("() => lathe.plotsOfRun()?.panels[0]?.plot")
    return page.locator(".plot-canvas").first


def test_the_plots_of_a_page_in_german_are_drawn(page):
    run = PlayedRun().claim().report(PhaseStarted(phase="training"), Metrics(step=1, values={"loss": 1.0}))
    page.goto("/settings")
    page.evaluate("document.cookie = 'lathe-language=de'")
    shown(page, run)
    says(page, ".plots", "Verlust")


@pytest.fixture
def run(page):
    return training_run()


def x_of_loss(page):
    return page.evaluate("lathe.plotsOfRun().panels[0].lines[0].x")


class TestPlots:
    """Tests that share one loaded page; the last one leaves another axis."""

    @pytest.fixture(scope="class")
    @classmethod
    def page(cls, emptied_once, request):
        run = training_run()
        with opened(request.config, emptied_once[0]) as page:
            shown(page, run)
            yield page

    def test_the_readout_shows_values_at_the_cursor_of_all_plots(self, page):
        canvas = page.locator(".plot-canvas").first
        says(page, ".plot-readout", "last")
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60)
        page.locator(".plot-readout", has_text="step 1,").nth(1).wait_for()
        first, second = (page.locator(".plot-where").nth(index).inner_text() for index in range(2))
        assert first == second
        says(page, ".plot-readout", "peak")

    def test_the_index_marks_the_section_that_is_read(self, page):
        assert page.locator(".sections a[aria-current]").inner_text() == "Overview"
        page.locator(".sections a", has_text="Log").click()
        says(page, ".sections a[aria-current]", "Log")
        page.locator(".sections a", has_text="Plots").click()
        says(page, ".sections a[aria-current]", "Plots")
        page.evaluate("scrollTo(0, 0)")
        says(page, ".sections a[aria-current]", "Overview")

    def test_a_drag_zooms_all_plots_and_asks_for_finer_data_and_a_double_click_resets(self, page):
        canvas = page.locator(".plot-canvas").first
        assert len(x_of_loss(page)) == 376
        box = canvas.bounding_box()
        with page.expect_request(lambda request: "/plots?" in request.url and "from=" in request.url):
            page.mouse.move(box["x"] + 200, box["y"] + 60)
            page.mouse.down()
            page.mouse.move(box["x"] + 260, box["y"] + 60, steps=3)
            page.mouse.up()
        page.wait_for_function("() => (xs => xs[1] - xs[0] === 1)(lathe.plotsOfRun().panels[0].lines[0].x)")
        ranges = page.evaluate(
            "lathe.plotsOfRun().panels.map(({ plot }) => plot && [plot.scales.x.min, plot.scales.x.max])"
        )
        assert ranges == [ranges[0]] * len(ranges)
        assert ranges[0][1] - ranges[0][0] < 500
        canvas.dblclick()
        page.wait_for_function("() => lathe.plotsOfRun().panels[0].lines[0].x.length === 376")

    def test_the_keyboard_moves_the_cursor_and_zooms(self, page):
        page.mouse.move(0, 0)
        page.locator(".plot-canvas").first.focus()
        page.keyboard.press("ArrowLeft")
        says(page, ".plot-readout", "step 3,000")
        page.keyboard.press("ArrowLeft")
        says(page, ".plot-readout", "step 2,999")
        page.keyboard.press("+")
        page.wait_for_function("() => lathe.plotsOfRun().range")
        page.keyboard.press("0")
        page.wait_for_function("() => lathe.plotsOfRun().range === null")
        assert "training 1." in page.locator(".plot-canvas").first.get_attribute("aria-label")

    def test_a_plot_is_saved_as_points_and_as_a_picture(self, page):
        for label, name in (("Points (CSV)", "loss.csv"), ("Picture (PNG)", "loss.png")):
            page.get_by_label("Menu of the plot Loss").click()
            with page.expect_download() as download:
                page.get_by_role("button", name=label).first.click()
            assert download.value.suggested_filename == name
            content = download.value.path().read_bytes()
            assert content.startswith(b"step,training\n" if name == "loss.csv" else b"\x89PNG")

    def test_a_plot_fills_the_screen_until_escape(self, page):
        canvas = page.locator(".plot-canvas").first
        page.get_by_label("Menu of the plot Loss").click()
        page.get_by_role("button", name="Full screen").first.click()
        page.wait_for_function("() => document.querySelector('.plot-canvas').clientHeight > 500")
        page.evaluate("document.exitFullscreen()")
        page.wait_for_function("() => document.querySelector('.plot-canvas').clientHeight === 170")
        assert canvas.is_visible()

    def test_plots_are_moved_hidden_and_remembered(self, page):
        def titles():
            return [title for title in page.locator(".plot h3").all_inner_texts() if title]

        usual = titles()
        page.get_by_label("Menu of the plot Loss").click()
        page.get_by_role("button", name="Later").first.click()
        assert titles() == [usual[1], "Loss", *usual[2:]]
        page.get_by_label(f"Menu of the plot {usual[1]}").click()
        page.get_by_role("button", name="Hide").first.click()
        assert titles() == ["Loss", *usual[2:]]
        page.reload()
        page.wait_for_function("() => lathe.plotsOfRun()?.panels[0]?.plot")
        assert titles() == ["Loss", *usual[2:]]
        page.locator(".plot-choice summary").click()
        page.locator(".plot-choice label", has_text=usual[1].split(",")[0]).locator("input").check()
        assert titles() == [usual[1], "Loss", *usual[2:]]
        page.get_by_role("button", name="Usual arrangement").click()
        assert titles() == usual
        page.locator(".plot-choice summary").click()

    def test_phases_have_durations(self, page):
        says(page, ".phase-list", "loading model", "training")

    def test_the_x_axis_can_be_tokens(self, page):
        page.locator(".plot-tools option[value=tokens]").wait_for(state="attached")
        page.locator(".plot-tools select").first.select_option("tokens")
        page.wait_for_function("() => lathe.plotsOfRun().panels[0].lines[0].x.at(-1) === 300000")
        says(page, ".plot-where", "last")


def test_the_facts_and_plots_follow_the_stream(page, run):
    shown(page, run)
    says(page, ".standing", "3,000 of 4,000")
    run.report(Metrics(step=3001, values={"loss": 0.5, "tokens_per_second": 1234.0}))
    says(page, ".standing", "3,001 of 4,000", "0.5000", "1,234 tokens/s")
    page.wait_for_function("() => lathe.plotsOfRun().panels[0].lines[0].x.at(-1) === 3001")


def test_plots_outside_of_the_window_are_drawn_when_they_come_into_view_or_are_printed(page, run):
    page.set_viewport_size({"width": 390, "height": 300})
    page.goto(f"/run?id={run.id}")
    last = page.locator(".plot-canvas:visible").last
    last.wait_for()
    height = page.evaluate("document.documentElement.scrollHeight")
    assert page.locator(".plot canvas").count() == 0
    last.scroll_into_view_if_needed()
    last.locator("canvas").wait_for()
    assert page.evaluate("document.documentElement.scrollHeight") == height
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_function("() => lathe.plotsOfRun().panels.every(panel => !panel.isNear)")
    run.report(
        Metrics(step=3001, values={"loss": 0.5}),
        *(Metrics(step=3001, rank=rank, values={"memory_peak": GIB}) for rank in range(2)),
    )
    end_of_last = "lathe.plotsOfRun().panels.at(-1).plot.data[0].at(-1)"
    page.wait_for_function("() => lathe.plotsOfRun().panels[0].lines[0].x.at(-1) === 3001")
    assert page.evaluate(end_of_last) < 3001
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate(end_of_last) == 3001
    assert page.evaluate("lathe.plotsOfRun().panels.filter(panel => panel.lines.length).every(panel => panel.plot)")


def test_a_run_that_goes_back_draws_the_steps_again(page, run):
    shown(page, run)
    run.report(Resumed(step=1000, path="checkpoint-1000", rejected=[]))
    says(page, ".events", "Resumed from step 1000.")
    says(page, ".standing", "1,000 of 4,000")


def test_the_log_is_searched_with_next_and_previous(page, run):
    run.prints(*[f"step {n} of 3000" + (" <b>needle</b>" if n in (3, 400, 900) else "") for n in range(1000)])
    shown(page, run)
    says(page, ".log", "step 999 of 3000")
    page.locator(".log-search").fill("NEEDLE")
    says(page, ".log-count", "1 of 1")  # the newest 500 lines have one
    assert page.locator(".log mark").all_inner_texts() == ["needle"]
    page.locator(".log-search").press("Shift+Enter")
    says(page, ".log-line.current", "step 400 of 3000")  # the server has found it in the older lines
    page.locator(".log-search").press("Shift+Enter")
    says(page, ".log-line.current", "step 3 of 3000 <b>needle</b>")
    says(page, ".log-count", "1 of 3")
    page.locator(".log-search").press("Enter")
    says(page, ".log-count", "2 of 3")


def test_the_log_is_filtered_by_level_and_rank_and_older_lines_come_on_scrolling_up(page, run):
    run.prints(*[f"[rank{n % 2}]: line {n}" for n in range(600)], "[rank1]: ValueError: broken", "UserWarning: odd")
    shown(page, run)
    says(page, ".log", "ValueError: broken")
    page.get_by_label("Level", exact=True).select_option("error")
    assert page.locator(".log-line").all_inner_texts() == ["[rank1]: ValueError: broken"]
    page.get_by_label("Level", exact=True).select_option("all")
    page.get_by_label("Rank", exact=True).select_option("0")
    assert page.locator(".log-line", has_text="[rank1]").count() == 0
    page.get_by_label("Rank", exact=True).select_option("all")
    page.locator(".log").evaluate("box => { box.scrollTop = 0 }")
    says(page, ".log", "line 0")


def test_the_whole_log_is_downloaded(page, run):
    run.prints(*[f"line {n}" for n in range(2500)])
    shown(page, run)
    with page.expect_download() as download:
        page.locator(".log-tools a", has_text="Download").click()
    lines = download.value.path().read_text().splitlines()
    assert lines == [f"line {n}" for n in range(2500)]


def test_new_log_lines_arrive_and_following_stops_while_somebody_reads(page, run):
    run.prints(*[f"line {n}" for n in range(100)])
    shown(page, run)
    says(page, ".log", "line 99")
    page.locator(".log").evaluate("box => { box.scrollTop = 200 }")
    page.wait_for_function("() => !document.querySelector('.log-follow input').checked")
    run.prints("the newest")
    says(page, ".log", "the newest")
    assert page.locator(".log").evaluate("box => box.scrollTop") == 200
