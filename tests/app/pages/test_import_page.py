"""The page Import a configuration, in a real browser."""

import json

from browser import IN_BROWSER, field, says

pytestmark = IN_BROWSER

HARM = "<img src=x onerror='window.harmed = true'>"
AXOLOTL = f"""
base_model: Qwen/Qwen3-0.6B
adapter: lora
lora_r: 24
sequence_len: 768
liger_rope: true
wandb_name: "{HARM}"
"""


def test_a_pasted_file_is_translated_and_opens_in_the_form(page):
    page.goto("/new")
    page.locator(".title .aside a", has_text="Import a configuration").click()
    says(page, ".empty", "No file yet")
    page.locator("#configuration textarea").fill(AXOLOTL)
    page.locator("#import").click()
    says(page, ".panel", "Recognized: axolotl.", "Choose in New run: data.", "liger_rope")
    assert page.evaluate("window.harmed") is None
    page.locator("#open-imported").click()
    page.wait_for_function("document.querySelector('#setting-lora_r textarea')?.value === '24'")
    assert field(page, "max_length").input_value() == "768"
    assert field(page, "model").input_value() == "Qwen/Qwen3-0.6B"


def test_uploaded_files_are_translated_together_and_not_kept(page, site, tmp_path):
    (tmp_path / "theirs.yaml").write_text(AXOLOTL)
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    page.goto("/import")
    page.locator("#configuration-files input[type=file]").set_input_files(
        [tmp_path / "theirs.yaml", tmp_path / "zero.json"]
    )
    says(page, ".panel", "Recognized: axolotl, DeepSpeed.", "strategy: zero3")
    assert list(site[1].rglob("theirs.yaml")) == []


def test_a_text_of_no_known_program_is_refused(page):
    page.goto("/import")
    page.locator("#configuration textarea").fill("hello")
    page.locator("#import").click()
    says(page, ".alert", "is not a configuration of")


def test_a_file_that_is_too_long_is_refused_and_not_cut(page, tmp_path):
    (tmp_path / "long.yaml").write_text(AXOLOTL + "# " + "x" * 2**20)
    page.goto("/import")
    page.locator("#configuration-files input[type=file]").set_input_files([tmp_path / "long.yaml"])
    says(page, ".alert", "is larger than 1 MiB")


def test_a_link_does_not_inherit_a_draft_and_offers_it_again(page):
    page.goto("/new")
    page.locator("#command .cm-line", has_text="accelerate launch").wait_for()
    field(page, "lora_r").fill("48")
    field(page, "learning_rate").fill("abc")
    says(page, ".problems li", "Learning rate")  # arrives with the stored draft
    page.goto("/new?max_length=256")
    says(page, ".banner", "The link set Max length; everything else is at its default.")
    assert field(page, "max_length").input_value() == "256"
    assert field(page, "lora_r").input_value() == "16"
    page.locator(".banner a", has_text="open it again").click()
    page.wait_for_function("document.querySelector('#setting-lora_r textarea')?.value === '48'")
    assert field(page, "learning_rate").input_value() == "abc"
