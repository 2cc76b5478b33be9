"""Which script a text is written in."""

from training.scripts import NO_SCRIPT, SCRIPTS, main_scripts


def test_the_letters_of_a_text_decide_and_not_its_digits_and_signs():
    texts = ["plain, 12", "日本語です hi", "Привет!", "नमस्ते", "12 + 30 = 42!", "", "สวัสดี", "naïve", "안녕"]
    names = [SCRIPTS[script] for script in main_scripts(texts)]
    assert names == ["Latin", "Han", "Cyrillic", "Devanagari", NO_SCRIPT, NO_SCRIPT, "Thai", "Latin", "Hangul"]
