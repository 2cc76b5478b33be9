"""Which flash kernel `attention: auto` chooses on which card, and what the kernels get."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from training.batches.layout import choose_layout
from training.config.choices import Attention
from training.config.run_config import RunConfig
from training.models.attention import runs_on

LENGTHS = [5, 1, 9]


@pytest.mark.parametrize(
    ("card", "kernels"),
    [((7, 0), set()), ((7, 5), set()), ((8, 0), {2}), ((8, 9), {2}), ((9, 0), {2, 3}), ((10, 0), {2})],
)
def test_a_card_gets_only_kernels_that_run_on_it(card, kernels):
    named = {2: Attention.FLASH_2, 3: Attention.FLASH_3}
    assert {number for number, kernel in named.items() if runs_on(kernel, card)} == kernels


@pytest.fixture
def flash_model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A model that calls `flash_attn_varlen_func`, here one that computes the same with SDPA, row by row."""
    from transformers import LlamaConfig, LlamaForCausalLM, modeling_flash_attention_utils

    functions = (None, flash_attn_varlen_func, None, None, None)
    monkeypatch.setattr(modeling_flash_attention_utils, "_loaded_implementation", None)
    monkeypatch.setattr(modeling_flash_attention_utils, "_lazy_imports", lambda *_, **__: functions)
    torch.manual_seed(0)
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, **heads)
    model = LlamaForCausalLM(config).eval()
    model.config._attn_implementation = "flash_attention_2"  # set_attn_implementation asks for the package
    return model


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, softmax_scale, causal):
    """The package's function on tensors of shape (tokens, heads, size), from its documentation."""
    assert torch.equal(cu_seqlens_q, cu_seqlens_k) and cu_seqlens_q.dtype is torch.int32
    assert max_seqlen_q == max_seqlen_k == max(LENGTHS)
    rows = []
    for start, end in pairwise(cu_seqlens_q.tolist()):
        parts = (tensor[start:end].transpose(0, 1) for tensor in (q, k, v))
        row = functional.scaled_dot_product_attention(*parts, is_causal=causal, scale=softmax_scale, enable_gqa=True)
        rows.append(row.transpose(0, 1))
    return torch.cat(rows)


def rows() -> Any:
    tokens = [np.arange(3, 3 + length, dtype=np.int32) for length in LENGTHS]
    return [{"input_ids": row, "labels": row} for row in tokens]


def test_flat_batches_tell_flash_kernels_the_rows_so_that_transformers_does_not_look_for_them(flash_model, monkeypatch):
    from transformers import modeling_flash_attention_utils

    config = RunConfig.model_validate({"model": "m", "data": "d"})
    batch = choose_layout(config, flash_model, 0).collator(rows())
    (starts, ends), (longest, _) = modeling_flash_attention_utils.prepare_fa_kwargs_from_position_ids(
        batch["position_ids"]
    )
    for name, expected in (("cu_seq_lens_q", starts), ("cu_seq_lens_k", ends)):
        torch.testing.assert_close(batch[name], expected)
    assert batch["max_length_q"] == batch["max_length_k"] == int(longest)
    assert type(batch["max_length_q"]) is int  # a tensor on the GPU would be waited for
    derived = flash_model(**{name: batch[name] for name in ("input_ids", "position_ids")}).logits
    for name in ("_is_packed_sequence", "_prepare_from_posids"):
        monkeypatch.setattr(modeling_flash_attention_utils, name, pytest.fail)
    got = flash_model(**batch, use_cache=False).logits  # of the tokens with loss
    torch.testing.assert_close(got[0], derived[0, batch["logits_to_keep"]])
    monkeypatch.undo()
    flash_model.set_attn_implementation("sdpa")
    apart = [flash_model(input_ids=torch.as_tensor(row["input_ids"])[None].long()).logits[0] for row in rows()]
    torch.testing.assert_close(derived[0], torch.cat(apart), atol=1e-5, rtol=1e-4)


def test_batches_for_other_kernels_have_no_bounds(flash_model):
    flash_model.config._attn_implementation = "sdpa"
    batch = choose_layout(RunConfig.model_validate({"model": "m", "data": "d"}), flash_model, 0).collator(rows())
    assert not {"cu_seq_lens_q", "max_length_q"} & set(batch)
