"""Numbers as users type them, and which GPU is cheapest by its work."""

import pytest
from subtest_table import table

from worker.forecasts.prices import PriceError, cheapest_first, parse
from worker.store.filters import FilterError, conditions


@table(("typed",), [("2,50",), ("0,60",), ("h100=2,50",), ("h100=2.50, l4=0,60",)])
def test_a_decimal_comma_in_a_price_is_refused_by_name(typed):
    with pytest.raises(PriceError, match="comma within a number"):
        parse(typed, "")


def test_a_decimal_comma_in_a_filter_is_refused_and_thousands_are_read():
    with pytest.raises(FilterError, match="with a point"):
        conditions("loss<1,5")
    assert conditions("step>1,000,000")[-1].right.value == 1_000_000


def test_the_cheapest_gpu_is_that_of_the_cheapest_work():
    assert [card.name for card in cheapest_first(parse("l4=2.00, h100=2.50", ""))] == ["h100", "l4"]
