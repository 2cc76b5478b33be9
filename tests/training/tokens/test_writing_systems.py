"""Detecting the script of a text."""

from training.tokens.store_writer import NO_SCRIPT, SCRIPTS, main_scripts


def test_the_script_of_a_text_depends_on_its_letters():
    texts = ["plain, 12", "日本語です hi", "Привет!", "नमस्ते", "12 + 30 = 42!", "", "สวัสดี", "naïve", "안녕"]
    names = [SCRIPTS[script] for script in main_scripts(texts)]
    assert names == ["Latin", "Han", "Cyrillic", "Devanagari", NO_SCRIPT, NO_SCRIPT, "Thai", "Latin", "Hangul"]
