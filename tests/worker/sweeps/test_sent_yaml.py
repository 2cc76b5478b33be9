"""YAML that somebody sends is read outside of the server's process if it is long."""

import pytest

from training.config import yaml_text
from training.config.yaml_text import YamlTextError
from worker.machine import programs
from worker.sweeps import sent_yaml


@pytest.mark.parametrize("short", [True, False])
def test_a_text_has_one_value_wherever_it_is_read(short, monkeypatch):
    text = "model: static/starter\nseed: 3\nrewards: [exact_match, 1.5, null]\n"
    filled = text if short else text + "# more\n" * yaml_text.SHORT_TEXT
    asked = []
    run = programs.run_for_json
    monkeypatch.setattr(programs, "run_for_json", lambda *args, **options: asked.append(args) or run(*args, **options))
    assert sent_yaml.load(filled) == yaml_text.load(text)
    assert len(asked) == (not short)


@pytest.mark.parametrize(
    "text", ["[" * 5_000, "a: &a [" + "1," * 3_000 + "]\nb: [" + "*a," * 3_000 + "]", "a: b: c" + " " * 3_000]
)
def test_a_long_text_that_is_wrong_is_refused_in_the_same_words(text):
    with pytest.raises(YamlTextError) as alone:
        yaml_text.load(text)
    with pytest.raises(YamlTextError) as sent:
        sent_yaml.load(text)
    assert str(sent.value) == str(alone.value)
