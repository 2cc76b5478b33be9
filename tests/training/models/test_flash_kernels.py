"""Which flash kernel `attention: auto` chooses on which card."""

import pytest

from training.config.choices import Attention
from training.models.attention import runs_on


@pytest.mark.parametrize(
    ("card", "kernels"),
    [((7, 0), set()), ((7, 5), set()), ((8, 0), {2}), ((8, 9), {2}), ((9, 0), {2, 3}), ((10, 0), {2})],
)
def test_a_card_gets_only_kernels_that_run_on_it(card, kernels):
    named = {2: Attention.FLASH_2, 3: Attention.FLASH_3}
    assert {number for number, kernel in named.items() if runs_on(kernel, card)} == kernels
