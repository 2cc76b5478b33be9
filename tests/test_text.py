"""Numbers as people read them."""

import math

import pytest

from app import text


@pytest.mark.parametrize(
    ("size", "told"),
    [
        (None, "-"), (0, "0 bytes"), (1, "1 byte"), (1023, "1023 bytes"),
        (1536, "1.5 KiB"), (300 * 2**20, "300 MiB"), (80 * 2**30, "80.0 GiB"),
    ],
)
def test_bytes_are_told_in_binary_units(size, told):
    assert text.byte_size(size) == told


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (None, "-"), (math.inf, "-"), (0.44, "0.4 s"), (12, "12 s"), (59.7, "1 min 0 s"),
        (125, "2 min 5 s"), (11520, "3 h 12 min"), (187200, "2 d 4 h"),
    ],
)
def test_durations_are_told_in_the_two_units_that_matter(seconds, told):
    assert text.duration(seconds) == told


@pytest.mark.parametrize(("number", "told"), [(1234.4, "1,234 rows/s"), (12.34, "12.3 rows/s"), (math.nan, "-")])
def test_a_rate_carries_its_unit(number, told):
    assert text.rate(number, "rows") == told


@pytest.mark.parametrize(
    ("number", "told"), [(0.12345, "0.1235"), (0.0, "0.0000"), (1.2e-6, "1.2e-06"), (math.nan, "-"), (None, "-")]
)
def test_a_loss_keeps_four_places_and_a_tiny_one_its_exponent(number, told):
    assert text.decimal(number) == told


def test_a_noun_agrees_with_its_number():
    assert (text.plural(1, "row"), text.plural(1200, "row")) == ("1 row", "1,200 rows")


def test_a_table_aligns_its_columns():
    rows = [["RUN", "LOSS"], ["a", "0.5"], ["long-name", "10.25"]]
    assert text.table(rows, right=frozenset({1})) == "RUN         LOSS\na            0.5\nlong-name  10.25"


def test_a_value_of_several_lines_stays_in_its_column():
    lines = "  Error  first\n         second\n  Fix    do this"
    assert text.pairs([("Error", "first\nsecond"), ("Fix", "do this")]) == lines


def test_a_bar_stays_within_its_width_whatever_the_share():
    assert [text.bar(share, 4) for share in (-1, 0.5, 2)] == ["░░░░", "██░░", "████"]
