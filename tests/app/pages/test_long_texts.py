"""Texts that pages send are read in linear time: a page sends up to four megabytes, and a pattern stops the whole server."""

import pytest

from app.pages.common import mapping
from app.pages.new_sweep import typed

LENGTH = 400_000  # in quadratic time these take hours


@pytest.mark.parametrize("unit", [".", "1", "-", "e", " ", "_", "a=", 'a="', "1 to ", "1..", "a ", "\n"])
def test_a_long_text_is_read_at_once(unit):
    text = unit * (LENGTH // len(unit))
    assert isinstance(mapping.partial(f"{text}x"), dict)
    assert isinstance(typed.values_of(f"{text}x"), (list, dict))


def test_mappings_and_ranges_are_read_as_before():
    assert mapping.partial('prompt = "a, b", completion=c.0.d,x') == {"prompt": "a, b", "completion": "c.0.d"}
    assert typed.values_of("1e-5..1e-3, log") == {"low": "1e-5", "high": "1e-3", "log": True}
    assert typed.values_of("8 to 64 step 8") == {"low": "8", "high": "64", "step": "8"}
    assert typed.values_of(".1...5") == {"low": ".1", "high": ".5"}
