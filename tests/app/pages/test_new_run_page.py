"""The form of New run in a real browser: folded groups, search, help, and the way to Start by keyboard and by mouse."""

import json

import pytest
from browser import IN_BROWSER, becomes_live, becomes_quiet, choose, field, opened, pick, requests_of, reveal, says
from played_run import PlayedRun

from training.config.fields import parse
from worker.forecasts import requested
from worker.forecasts.prices import Prices
from worker.runs.settle import settle
from worker.store import database, run_list

pytestmark = IN_BROWSER

TINY_MODEL = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 64, "intermediate_size": 128,
    "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 500, "tie_word_embeddings": False,
}  # fmt: skip


@pytest.fixture
def rows(tmp_path):
    """A data set file of 20 rows."""
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"{n} + 1 =", "completion": f" {n + 1}"}) + "\n" for n in range(20)))
    return path


@pytest.fixture
def tickets(tmp_path):
    """A table whose columns have no usual names; one has an emoji, one no name, one ends with a space."""
    path = tmp_path / "tickets.csv"
    lines = [f"{n},Wie bestelle ich {n} Äpfel?,Klicken Sie auf Bestellen. Fertig {n}.,{n % 5}," for n in range(20)]
    path.write_text("\n".join(["Ticket Nr.,Kundenfrage ,Antwort (Agent),⭐ rating,", *lines]), encoding="utf-8")
    return path


WITH_COLUMNS = 'prompt="Kundenfrage ", completion=Antwort (Agent)'


def open_new_run(page, query=""):
    page.goto(f"/new{query}")
    page.locator("#command .cm-line", has_text="accelerate launch").wait_for()


def group(page, name):
    return page.locator(f"#group-{name}")


def fold(page, name):
    return group(page, name).locator(".fold")


def focused(page):
    """The id of the setting, group or element that has the focus, or the text of one without an id."""
    return page.evaluate(
        """() => {
          const found = document.activeElement.closest(".setting, .foldable, .upload") ?? document.activeElement;
          return found.id || found.textContent.trim();
        }"""
    )


class Keys:
    """Presses keys and counts them: at most `most`."""

    def __init__(self, page, most):
        self.page, self.most, self.count = page, most, 0

    def press(self, *keys):
        for key in keys:
            assert self.count < self.most, f"{self.most} keys lead to {focused(self.page)}"
            self.page.keyboard.press(key)
            self.count += 1

    def tab_to(self, name):
        while focused(self.page) != name:
            self.press("Tab")

    def skip_the_header(self):
        self.press("Tab", "Enter")
        assert focused(self.page) == "main"


def one_run_is_queued(page):
    page.wait_for_url("**/run?id=*")
    says(page, ".standing", "position 1 of 1 in the queue")


class TestOfOneForm:
    """Tests that share one loaded form, which takes two seconds of processor time; the last ones leave another strategy."""

    @pytest.fixture(scope="class")
    @classmethod
    def loaded(cls, site, request):
        with opened(request.config, site[0]) as page:
            open_new_run(page)
            yield page

    @pytest.fixture
    def page(self, loaded):
        """The form with all groups folded, and without a search."""
        loaded.locator("#find-setting").fill("")
        for opened_fold in reversed(loaded.locator(".foldable .fold[aria-expanded=true]").all()):
            opened_fold.click()
        loaded.evaluate("document.activeElement.blur()")
        return loaded

    def test_the_basic_form_and_start_are_visible_without_scrolling(self, page):
        for selector in ("#setting-data", "#setting-max_length", "#group-reporting .fold", "#start"):
            box = page.locator(selector).bounding_box()
            assert box["y"] + box["height"] <= 900, selector

    def test_the_strategy_stands_behind_one_device_until_it_is_asked_for(self, page):
        page.locator(".block.one-device", has_text="1 device").wait_for()
        assert page.locator("#setting-strategy").is_hidden()
        page.locator("#find-setting").fill("zero stage 2")
        page.locator("#setting-strategy").wait_for()
        page.locator("#find-setting").fill("")
        page.locator("#setting-strategy").wait_for(state="hidden")
        page.locator("[data-reveal=strategy]").click()
        page.locator("#setting-strategy").wait_for()
        assert focused(page) == "setting-strategy"
        assert page.locator(".block.one-device").is_hidden()

    def test_a_folded_group_opens_by_click_and_by_key_and_is_one_tab_stop(self, page):
        lora_r = page.locator("#setting-lora_r textarea")
        assert lora_r.is_hidden()
        fold(page, "method").click()
        lora_r.wait_for()
        assert fold(page, "method").get_attribute("aria-expanded") == "true"
        page.keyboard.press("Enter")
        lora_r.wait_for(state="hidden")
        page.keyboard.press("Tab")
        assert focused(page) == "group-strategy"

    def test_the_search_shows_the_settings_that_match_in_their_groups_and_escape_clears_it(self, page):
        sent = requests_of(page)
        page.keyboard.press("/")
        page.keyboard.type("grad_accum")
        page.locator("#setting-gradient_accumulation_steps textarea").wait_for()
        assert page.locator(".form-column .setting:visible").count() == 1
        assert page.locator(".foldable:visible h2").all_inner_texts()[0].startswith("Optimization")
        assert sent == []
        page.keyboard.press("Enter")
        assert focused(page) == "setting-gradient_accumulation_steps"
        page.locator("#find-setting").press("Escape")
        page.locator("#setting-gradient_accumulation_steps").wait_for(state="hidden")
        page.locator("#setting-data").wait_for()

    def test_the_search_says_when_a_setting_has_no_effect_and_when_none_matches(self, page):
        page.locator("#find-setting").fill("zero_quantized_weights")
        says(page, "#find-result", "Without effect on this run: Quantized weights (qwZ) (applies to strategy zero3)")
        page.locator("#find-setting").fill("<b>nothing")
        says(page, "#find-result", 'No setting matches "<b>nothing".')

    def test_a_link_to_a_problem_opens_the_group_of_its_field(self, page):
        field(page, "lora_r").fill("abc")
        says(page, ".problems", "abc")
        fold(page, "method").click()
        page.locator("#setting-lora_r").wait_for(state="hidden")
        page.locator(".problems [data-goto=lora_r]").click()
        page.locator("#setting-lora_r").wait_for()
        assert focused(page) == "setting-lora_r"
        field(page, "lora_r").fill("16")
        page.locator(".problems", has_text="abc").wait_for(state="detached")

    def test_a_wrong_learning_rate_is_named_beside_start_and_at_its_field(self, page):
        field(page, "learning_rate").fill("abc")
        says(page, ".problems li", "Learning rate")
        says(page, ".problems", "abc", "is not a number", "above 0, at most 1")
        assert page.locator("#setting-learning_rate.wrong").count() == 1
        assert page.locator("#start").is_disabled()
        assert field(page, "learning_rate").input_value() == "abc"
        field(page, "learning_rate").fill("0.001")
        page.locator("#setting-learning_rate.wrong").wait_for(state="detached")

    def test_full_fine_tuning_hides_the_lora_settings_and_lora_restores_their_values(self, page):
        field(page, "lora_r").fill("8")
        pick(page, "method", "Full fine-tuning")
        field(page, "lora_r").wait_for(state="hidden")
        says(page, "#command", "accelerate")
        pick(page, "method", "LoRA")
        field(page, "lora_r").wait_for()
        assert field(page, "lora_r").input_value() == "8"
        field(page, "lora_r").fill("16")

    def test_a_distributed_strategy_proposes_processes_and_one_click_fixes_a_conflict(self, page):
        choose(page, "strategy", "ZeRO stage 2")
        field(page, "num_processes").wait_for()
        page.wait_for_function("document.querySelector('#setting-num_processes textarea').value === '2'")
        field(page, "num_processes").fill("1")
        page.locator(".fix", has_text="Set Strategy: Single device").click()
        page.locator("#setting-strategy label.selected", has_text="Single device").wait_for()
        page.locator(".problems", has_text="num_processes is 1").wait_for(state="detached")

    @pytest.mark.nightly
    def test_another_method_shows_its_options(self, page):
        reveal(page, "method_options")
        says(page, ".method-options summary", "LoRA options")
        pick(page, "method", "VeRA")
        says(page, ".method-options summary", "VeRA options")
        field(page, "method_options").fill("d_initail=0.2")
        says(page, ".problems", "Did you mean d_initial?")
        page.locator(".problems button.fix", has_text="d_initial").click()
        page.wait_for_function("document.querySelector('#setting-method_options textarea')?.value === 'd_initial=0.2'")
        field(page, "method_options").fill("")
        pick(page, "method", "LoRA")
        says(page, ".method-options summary", "LoRA options")

    def test_a_choice_group_is_one_tab_stop_with_arrow_keys_and_explains_the_chosen_option_in_place(self, page):
        reveal(page, "strategy")
        below = page.locator("#setting-learning_rate")
        before = below.bounding_box()["y"]
        page.locator("#setting-method input").focus()
        page.keyboard.press("Tab")
        page.wait_for_function("document.activeElement.closest('#setting-strategy')")
        page.locator("[role=listbox]").wait_for(state="detached")
        page.keyboard.press("ArrowRight")
        says(page, "#setting-strategy .info-text", "Every device holds a copy of the model")
        page.keyboard.press("Tab")
        assert focused(page) == "setting-learning_rate"
        says(page, "#setting-strategy label.selected", "DDP")
        page.locator("#setting-num_processes").wait_for()
        assert below.bounding_box()["y"] == before

    def test_after_a_choice_that_shows_further_fields_the_page_becomes_quiet(self, page):
        choose(page, "strategy", "ZeRO stage 3")
        page.wait_for_function("document.querySelector('#setting-num_processes textarea')?.value === '2'")
        becomes_quiet(page)


@pytest.mark.nightly
def test_the_line_of_a_folded_group_names_what_a_clone_changes(page):
    run = PlayedRun("sums", lora_r=64)
    open_new_run(page, f"?clone={run.id}")
    says(page, "#group-method .differs", "1 changed: LoRA r 64")
    assert page.locator("#setting-lora_r textarea").is_hidden()


def test_an_empty_installation_queues_the_example_after_at_most_15_keys(page):
    page.goto("/")
    keys = Keys(page, most=15)
    keys.skip_the_header()
    keys.tab_to("Start the example")
    keys.press("Enter")
    one_run_is_queued(page)


def test_an_empty_installation_queues_a_run_on_own_data_after_at_most_25_keys(page, rows):
    page.on("filechooser", lambda dialog: dialog.set_files(rows))
    page.goto("/")
    keys = Keys(page, most=25)
    keys.skip_the_header()
    keys.tab_to("New run")
    keys.press("Enter")
    page.wait_for_url("**/new")
    becomes_live(page)
    keys.skip_the_header()
    keys.tab_to("upload")
    keys.press("Enter")
    keys.count += 1  # choosing the file in the browser's dialog counts as one key
    says(page, ".found-place", "prompt/completion")
    keys.tab_to("setting-model")
    page.get_by_role("option", name="Starter model").wait_for()
    keys.press("ArrowDown", "Enter")
    says(page, ".found-place", "At 1,024 tokens")
    says(page, ".ready", "Ready to start")
    assert "Ctrl+Enter" in page.locator("#start").get_attribute("title")
    keys.press("Control+Enter")
    one_run_is_queued(page)


def test_a_file_with_foreign_column_names_is_mapped_on_the_page(page, tickets):
    open_new_run(page, "?model=static/starter")
    with page.expect_file_chooser() as chooser:
        page.locator(".upload button").first.click()
    chooser.value.set_files(tickets)
    says(page, ".mapping .answer", "Klicken Sie auf Bestellen.")
    says(page, ".mapping", "Suggested by their names or contents.")
    says(page, ".step-head[data-state=wrong]", "Data", "Choose the columns that the model learns from, below.")
    says(page, ".start-card .lead", "Fix 1 problem to start.")
    assert page.locator(".problems li").count() == 0  # one problem stands in one place
    assert page.locator("#start").is_disabled()
    page.locator(".use-columns").click()
    says(page, ".ready", "Ready to start")
    assert page.locator(".step-head[data-state=done]").count() == 2
    says(page, ".found-place", "At 1,024 tokens")  # with this mapping, the rows are tokenized before Start
    answers = page.locator(".mapping select[data-key='role.completion']")
    answers.focus()
    answers.select_option("Kundenfrage ")
    says(page, ".mapping .answer", "Wie bestelle ich")
    assert page.evaluate("document.activeElement.dataset.key") == "role.completion"
    answers.select_option("Antwort (Agent)")
    says(page, ".ready", "Ready to start")
    page.locator("#start").click()
    one_run_is_queued(page)
    with database.read() as session:
        assert run_list.listing(session=session)[0].config["columns"] == WITH_COLUMNS


def test_what_is_typed_without_a_connection_comes_back_and_can_be_discarded(page):
    open_new_run(page)
    page.context.set_offline(True)
    try:
        field(page, "learning_rate").fill("0.003")
        page.locator("#connection").wait_for()
        field(page, "epochs").fill("7")
        pick(page, "method", "Full fine-tuning")
        assert page.locator(".toast-body:visible").count() == 0  # Gradio's, over Start
    finally:
        page.context.set_offline(False)
    says(page, ".restored", "Your settings are back: Method Full fine-tuning, Learning rate 0.003, Epochs 7.")
    becomes_live(page)
    assert (field(page, "learning_rate").input_value(), field(page, "epochs").input_value()) == ("0.003", "7")
    page.locator(".restored button").click()
    page.locator(".restored").wait_for(state="detached")
    page.reload()
    becomes_live(page)
    assert field(page, "epochs").input_value() == "3" and page.locator(".restored").count() == 0


def test_on_a_phone_start_and_the_number_of_problems_stay_at_the_bottom(page, rows):
    page.set_viewport_size({"width": 390, "height": 844})
    page.goto("/new?model=static/starter&lora_r=abc")
    becomes_live(page)
    says(page, ".bar-problems", "2 problems")
    bar = page.locator(".start-bar").bounding_box()
    assert (bar["x"], bar["width"], round(bar["y"] + bar["height"])) == (0, 390, 844)
    page.locator(".bar-problems button").click()
    page.wait_for_function("document.activeElement.closest('#setting-data')")
    page.locator(".upload input[type=file]").set_input_files(rows)
    says(page, ".bar-problems", "1 problem")
    page.locator(".bar-problems button").click()
    page.wait_for_function("document.activeElement.closest('#setting-lora_r')")
    field(page, "lora_r").fill("8")
    says(page, ".bar-problems", "Ready to start.")
    page.locator("#start").click()
    one_run_is_queued(page)


@pytest.mark.nightly
def test_samples_are_chosen_from_lists_by_keyboard_too(page):
    open_new_run(page)
    keys = Keys(page, most=25)
    keys.skip_the_header()
    keys.tab_to("setting-data")
    page.get_by_role("option", name="Starter sample: train.jsonl").wait_for()
    keys.press("ArrowDown", "Enter")
    says(page, ".found-place", "messages (jsonl)")
    keys.tab_to("setting-model")
    page.get_by_role("option", name="Starter model").wait_for()
    keys.press("ArrowDown", "Enter")
    says(page, ".found-place", "At 1,024 tokens")  # a sample is tokenized before Start, like every data set
    says(page, ".ready", "Ready to start")
    keys.press("Control+Enter")
    one_run_is_queued(page)


@pytest.mark.nightly
def test_new_run_simulates_a_step_while_the_limit_is_close_to_the_forecast(page, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(TINY_MODEL))
    asked = {"model": str(tmp_path), "data": "none", "method": "full", "max_length": 512, "memory_limit": 10_000}
    response = requested.respond(settle(parse(asked)), Prices(), gpu="cpu", simulate=False)
    needed = response.estimate.forecast.peak_bytes / 2**20
    page.goto(f"/new?model={tmp_path}&method=full&max_length=512&memory_limit={int(needed * 1.08)}")
    says(page, ".memory .verdict", "Fits, but is close to the limit")
    says(page, ".memory .verdict", "in the backward pass")
    assert page.locator(".memory-card .timeline").count() == 1
    field(page, "memory_limit").fill("10000")
    page.locator(".memory-card .timeline").wait_for(state="detached")
    says(page, ".memory .verdict b.good", "Fits")


def test_the_starter_example_is_followed_by_no_requests_without_end_and_its_rendered_rows_show_what_is_trained(page):
    page.goto("/new")
    becomes_live(page)
    page.get_by_text("Load the starter example").click()
    says(page, ".ready", "Ready to start")
    becomes_quiet(page)
    page.locator("#render-rows").click()
    says(page, ".rendered", "64 rows checked token by token and all 1,200 rendered, no faults found.")
    trained = "".join(page.locator(".rendered .tokens").first.locator(".trained").all_inner_texts())
    assert trained.startswith("{") and trained.endswith("<|end|>")
    page.locator("#setting-max_length input, #setting-max_length textarea").first.fill("60")
    page.locator("#render-rows").click()
    page.locator(".rendered .fix").first.click()
    page.wait_for_function(
        "Number(document.querySelector('#setting-max_length input, #setting-max_length textarea').value) > 60"
    )
