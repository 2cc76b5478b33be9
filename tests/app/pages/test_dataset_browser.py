"""Data sets in a real browser: upload, view tokens, drag the maximum length, map columns, and refresh."""

import json
import re

import pytest
from browser import IN_BROWSER, requests_of, says

from worker.datasets import datasets

pytestmark = IN_BROWSER

SCRIPT = "<img src=x onerror='window.harmed = true'>"


def upload(page, path):
    page.goto("/new-dataset")
    page.set_input_files("#upload input[type=file]", path)
    page.wait_for_url("**/datasets")


def test_a_file_is_uploaded_and_tokenized_and_its_maximum_length_dragged(page, tmp_path):
    listed = [
        {"prompt": f"{n} + 1 = {SCRIPT if n == 1 else ''}", "completion": f" {'word ' * n}"} for n in range(1, 120)
    ]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    upload(page, path)
    says(page, "table.sets td.name", "sums.jsonl")
    page.locator("table.sets td.name a").first.click()
    says(page, ".set-facts", "prompt/completion", "119")

    page.locator("#tab-tokens").click()
    says(page, ".token-view", "Row 1 of 119", "With loss")
    page.locator("#go-longest").click()
    says(page, ".token-view", "Row 119 of 119")
    page.reload()
    says(page, ".token-view", "Row 119 of 119")

    page.locator("#tab-lengths").click()
    page.locator("figure.histogram svg").wait_for()
    page.wait_for_function("location.search.includes('tab=lengths')")
    says(page, ".cost", "At 1,024 tokens, no row is truncated.")
    asked = requests_of(page)
    box = page.locator("figure.histogram").bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.9, box["y"] + 100)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + 100, steps=8)
    live = page.locator(".cost").first.inner_text()
    assert re.search(r"[\d,]+ of 119 rows \([\d.]+%\) are truncated", live)
    assert asked == []  # the sentence needed no request
    page.mouse.up()
    page.wait_for_function("location.search.includes('max_length=')")
    limit = re.search(r"At ([\d,]+) tokens", live)[1].replace(",", "")
    assert f"max_length={limit}" in page.url
    page.reload()
    page.locator("figure.histogram svg").wait_for()
    assert page.locator("#field-max_length").input_value() == limit
    assert page.locator(".cost").first.inner_text() == live  # the server's sentence for the same maximum length
    assert page.evaluate("window.harmed") is None


@pytest.mark.nightly
def test_columns_are_mapped_in_dropdowns_with_a_live_preview(page, tmp_path):
    listed = [{"qa": {"q": f"question {n}", "a": [f"answer {n}"]}} for n in range(5)]
    path = tmp_path / "odd.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    upload(page, path)
    page.locator("table.sets tr", has_text="odd.jsonl").locator("a", has_text="needs a mapping").click()
    says(page, ".roles", "Prompt")
    page.locator("[id='field-role.prompt']").select_option("qa.q")
    says(page, ".panel", "Choose a column for: completion")
    page.locator("[id='field-role.completion']").select_option("qa.a.0")
    says(page, ".as-seen", "answer 0")
    page.reload()
    says(page, ".as-seen", "answer 0")
    page.locator("#save-mapping").click()
    says(page, ".banner", "Mapping saved")
    page.locator("#tab-lengths").click()
    says(page, ".lengths", "Median")


def test_an_unusable_file_is_explained_and_a_data_set_is_removed_after_a_confirmation(page, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "a", "completion": 5}\n')
    upload(page, bad)
    says(page, ".incoming .refused", "bad.jsonl", "row 1", "is a number")
    page.reload()
    says(page, ".incoming .refused", "bad.jsonl")
    good = tmp_path / "good.csv"
    good.write_text("text\nhello\n")
    upload(page, good)
    row = page.locator("table.sets tr", has_text="good.csv")
    row.locator("button", has_text="Remove").click()
    says(page, "#ask", "Remove good.csv?", "No run uses it.")
    page.locator("#ask [data-confirm]").click()
    row.wait_for(state="detached")


def added(path, listed):
    path.write_text("".join(json.dumps(row) + "\n" for row in listed))
    return datasets.add_file(path=path, name=path.name)


def test_all_rows_are_paged_and_searched_and_back_and_forward_go_through_pages_and_tabs(page, tmp_path):
    listed = [{"prompt": f"question {n}", "completion": f"{SCRIPT} {'word ' * n}"} for n in range(1, 201)]
    item = added(tmp_path / "many.jsonl", listed)
    page.goto(f"/dataset?id={item.id}")
    says(page, ".row-pages", "Rows 1 to 25 of 200", "question 25")
    page.locator("#rows-next").click()
    says(page, ".row-pages", "Rows 26 to 50 of 200")
    page.locator("#field-row").fill("190")
    page.locator("#field-row").press("Enter")
    says(page, ".row-pages tr.marked", "190")
    page.locator("#whole-190").click()
    says(page, ".in-full", "word " * 190)
    page.locator("#tab-columns").click()
    says(page, ".roles", "Prompt")
    page.go_back()
    says(page, ".in-full", "word " * 190)
    page.go_back()
    page.locator("#whole-190", has_text="show all").wait_for()
    page.go_back()
    says(page, ".row-pages", "Rows 26 to 50 of 200")
    page.go_back()
    says(page, ".row-pages", "Rows 1 to 25 of 200")
    page.go_forward()
    says(page, ".row-pages", "Rows 26 to 50 of 200")
    page.reload()
    says(page, ".row-pages", "Rows 26 to 50 of 200")
    page.locator("#field-search").fill("QUESTION 19")
    page.locator("#field-search").press("Enter")
    says(page, ".row-pages", "11 rows with “QUESTION 19”", "question 199")
    assert "search=QUESTION+19" in page.url
    page.reload()
    says(page, ".row-pages", "11 rows with “QUESTION 19”")
    page.locator("#row-199 .row-number a").first.click()
    says(page, ".token-view", "Row 199 of 200")
    page.go_back()
    says(page, ".row-pages", "11 rows with “QUESTION 19”")
    page.locator("#clear-search").click()
    says(page, ".row-pages", "of 200")
    assert page.evaluate("window.harmed") is None


@pytest.mark.nightly
def test_the_histogram_has_an_axis_of_rows_and_tells_what_a_bar_holds_by_pointer_and_by_key(page, tmp_path):
    item = added(tmp_path / "sums.jsonl", [{"prompt": "a", "completion": "word " * (1 + n % 40)} for n in range(400)])
    page.goto(f"/dataset?id={item.id}&tab=lengths&model=static/starter")
    page.locator("figure.histogram svg").wait_for()
    ticks = page.locator(".histogram .tick.rows").all_text_contents()
    assert ticks[0] == "0" and ticks[-1] == "rows" and len(ticks) >= 4
    bar = page.locator(".histogram .bar-of").nth(3).bounding_box()
    page.mouse.move(bar["x"] + bar["width"] / 2, bar["y"] + 1)
    assert re.fullmatch(r"[\d,]+( to [\d,]+)? tokens: \d+ rows?", page.locator(".histogram .readout").text_content())
    assert page.locator(".histogram .bar-of.chosen").count() == 1
    page.locator("figure.histogram").focus()
    for _ in range(20):
        if "Bar at the line" in (page.locator("figure.histogram").get_attribute("aria-valuetext") or ""):
            break
        page.keyboard.press("PageDown")
    assert re.search(
        r"Bar at the line: .* tokens: \d+ rows?", page.locator("figure.histogram").get_attribute("aria-valuetext")
    )
