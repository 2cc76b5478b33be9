"""Formatting of numbers."""

import math

import pytest

from app.format import numbers
from training.units import byte_size, parse_size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (None, "-"),
        (0, "0 bytes"),
        (1, "1 byte"),
        (1023, "1023 bytes"),
        (1536, "1.5 KiB"),
        (300 * 2**20, "300 MiB"),
        (80 * 2**30, "80.0 GiB"),
    ],
)
def test_bytes_are_formatted_in_binary_units(size, text):
    assert byte_size(size) == text


@pytest.mark.parametrize(
    ("text", "size"),
    [("200GB", 200 * 10**9), ("1.5 TiB", 3 * 2**39), (" 10m ", 10**7), ("7 B", 7), ("0.1KB", 100), ("1PiB", 2**50)],
)
def test_sizes_are_read_in_decimal_and_binary_units(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "200", "-1GB", "1,5GB", "1e3GB", "1 GB 2", "nanGB", "\uff11GB", "1 QB"])
def test_other_texts_are_no_sizes(text):
    with pytest.raises(ValueError):
        parse_size(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (math.inf, "-"),
        (0.44, "0.4 s"),
        (12, "12 s"),
        (59.7, "1 min 0 s"),
        (125, "2 min 5 s"),
        (11520, "3 h 12 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_durations_are_formatted_in_two_units(seconds, text):
    assert numbers.duration(seconds) == text


@pytest.mark.parametrize(("number", "text"), [(1234.4, "1,234 rows/s"), (12.34, "12.3 rows/s"), (math.nan, "-")])
def test_a_rate_has_a_unit(number, text):
    assert numbers.rate(number, "rows") == text


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0.12345, "0.1235"),
        (0.0, "0.0000"),
        (1.2e-6, "1.2e-06"),
        (1.234e107, "1.2e+107"),
        (999_999.0, "999999.0000"),
        (math.nan, "-"),
        (None, "-"),
    ],
)
def test_a_loss_has_four_decimals_and_a_tiny_or_huge_one_an_exponent(number, text):
    assert numbers.decimal(number) == text


def test_a_noun_agrees_with_its_number():
    assert (numbers.plural(1, "row", "rows"), numbers.plural(1200, "row", "rows")) == ("1 row", "1,200 rows")


def test_a_table_aligns_its_columns():
    rows = [["RUN", "LOSS"], ["a", "0.5"], ["long-name", "10.25"]]
    assert numbers.table(rows, right=frozenset({1})) == "RUN         LOSS\na            0.5\nlong-name  10.25"


def test_a_value_of_several_lines_stays_in_its_column():
    lines = "  Error  first\n         second\n  Fix    do this"
    assert numbers.pairs([("Error", "first\nsecond"), ("Fix", "do this")]) == lines


def test_a_bar_stays_within_its_width():
    assert [numbers.bar(share, 4) for share in (-1, 0.5, 2)] == ["░░░░", "██░░", "████"]
