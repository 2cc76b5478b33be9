"""The kernel for the rows of a flat batch gets the rows' bounds, grouped heads and window as SDPA computes them row by row."""

from itertools import pairwise

import pytest
import torch
from torch.nn import functional

from training.models import attention
from training.models.attention import FlatRows

LENGTHS, HEADS, GROUPS, SIZE = [5, 1, 9], 4, 2, 8


def reference_kernel(query, key, value, *, cu_seq_q, cu_seq_k, max_q, max_k, scale, window_size, enable_gqa=True):
    """What `varlen_attn` computes, from torch's documentation: shapes (tokens, heads, size)."""
    assert torch.equal(cu_seq_q, cu_seq_k) and max_q == max_k == max(LENGTHS) and enable_gqa
    rows = []
    for start, end in pairwise(cu_seq_q.tolist()):
        parts = (tensor[start:end].transpose(0, 1) for tensor in (query, key, value))
        tokens = torch.arange(end - start)
        mask = tokens[:, None] >= tokens
        if window_size[0] >= 0:
            mask &= tokens[:, None] - tokens <= window_size[0]
        row = functional.scaled_dot_product_attention(*parts, attn_mask=mask, scale=scale, enable_gqa=True)
        rows.append(row.transpose(0, 1))
    return torch.cat(rows)


@pytest.fixture
def flat():
    torch.manual_seed(0)
    tokens = sum(LENGTHS)
    heads = (HEADS, HEADS // GROUPS, HEADS // GROUPS)
    return [torch.randn(1, count, tokens, SIZE) for count in heads]


class Module(torch.nn.Module):
    num_key_value_groups, is_causal = GROUPS, True


@pytest.mark.parametrize("window", [None, 3])
def test_the_kernel_computes_what_sdpa_computes_row_by_row(monkeypatch, flat, window):
    masks = [None] * len(LENGTHS)
    if window:
        within = [torch.arange(length)[:, None] - torch.arange(length) for length in LENGTHS]
        masks = [((apart >= 0) & (apart < window))[None, None] if len(apart) > window else None for apart in within]
    rows = FlatRows(LENGTHS, masks)
    expected, _ = attention.row_by_row(Module(), *flat, rows, scaling=0.3, sliding_window=window)
    monkeypatch.setattr(attention, "has_rows_kernel", lambda *_: True)
    monkeypatch.setattr(attention, "varlen_attn", reference_kernel)
    got, _ = attention.row_by_row(Module(), *flat, rows, scaling=0.3, sliding_window=window)
    assert got.shape == (1, sum(LENGTHS), HEADS, SIZE)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("options", [{"dropout": 0.1}, {"softcap": 30.0}, {"s_aux": torch.zeros(HEADS)}])
def test_what_the_kernel_cannot_compute_goes_row_by_row(monkeypatch, flat, options):
    monkeypatch.setattr(attention, "has_rows_kernel", lambda *_: True)
    query, _, value = flat
    rows = FlatRows(LENGTHS, [None] * len(LENGTHS))
    assert attention.takes_rows(query, value, rows, {})
    assert not attention.takes_rows(query, value, rows, options)
    assert not attention.takes_rows(query, value, FlatRows(LENGTHS, [torch.ones(1)] * len(LENGTHS)), {})


def test_without_flash_keys_are_repeated_and_the_result_is_the_same(monkeypatch, flat):
    rows = FlatRows(LENGTHS, [None] * len(LENGTHS))
    expected, _ = attention.row_by_row(Module(), *flat, rows)
    monkeypatch.setattr(attention, "lacks_flash", lambda _: True)
    called = []
    original = functional.scaled_dot_product_attention

    def remembered(query, key, *rest, **named):
        called.append((query.shape[1], key.shape[1], named.get("enable_gqa", False)))
        return original(query, key, *rest, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", remembered)
    got, _ = attention.row_by_row(Module(), *flat, rows)
    torch.testing.assert_close(got, expected)
    assert set(called) == {(HEADS, HEADS, False)}
