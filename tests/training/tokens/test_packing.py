"""Flat and packed batches train like padded ones: rows do not mix, with any model and attention kernel."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from trained import Recipe, trained

from training.batches.collators import Collator
from training.batches.layout import FlatCollator, cross_row_influence, takes_logits_to_keep, why_not_flat
from training.batches.views import IGNORED, Tokens
from training.errors import UserError
from training.tokens.lengths import packing_waste
from training.tokens.order import ByLength, worst_batches
from training.tokens.packing import Packs, best_fit

SHAPE = {
    "vocab_size": 99,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "max_position_embeddings": 128,
}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SLIDING = {"head_dim": 8, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]}
MODELS: dict[str, dict[str, Any]] = {
    "llama": SHAPE | HEADS,
    "qwen2": SHAPE | HEADS,
    "qwen3": SHAPE | HEADS | {"head_dim": 8},
    "gemma3_text": SHAPE | HEADS | SLIDING,
    "gpt2": {
        "vocab_size": 99,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
}
ROWS = [3, 17, 1, 9, 30]


def model_of(kind: str, kernel: str) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    from training.models.attention import attend_row_by_row

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **MODELS[kind])
    row_by_row = kernel == "row by row"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa" if row_by_row else kernel)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, std=0.2)  # so that influence between tokens is measurable
    if row_by_row:
        attend_row_by_row(model)
    return model.eval()


def rows() -> list[Tokens]:
    """Rows of different lengths; the first third of each has no loss."""
    generator = np.random.default_rng(0)
    created: list[Tokens] = []
    for length in ROWS:
        tokens = generator.integers(3, 99, length).astype(np.int32)
        created.append({"input_ids": tokens, "labels": np.where(np.arange(length) < length // 3, IGNORED, tokens)})
    return created


def loss_and_gradients(model: Any, batch: dict[str, torch.Tensor]) -> tuple[float, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss = model(**batch, use_cache=False, num_items_in_batch=torch.tensor(40)).loss
    loss.backward()
    return loss.item(), {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}


@pytest.mark.parametrize("kernel", ["eager", "sdpa", "row by row", "flash_attention_2"])
@pytest.mark.parametrize("kind", MODELS)
def test_flat_batches_give_the_logits_loss_and_gradients_of_single_rows(kind: str, kernel: str) -> None:
    if kernel == "flash_attention_2":
        pytest.importorskip("flash_attn")
    model = model_of(kind, kernel)
    flat = FlatCollator(labeled_only=False)(rows())
    apart = [model(input_ids=torch.as_tensor(row["input_ids"], dtype=torch.long)[None]).logits[0] for row in rows()]
    torch.testing.assert_close(model(**flat, use_cache=False).logits[0], torch.cat(apart), atol=1e-4, rtol=1e-4)
    expected, expected_gradients = loss_and_gradients(model, Collator(0)(rows()))
    for keeps in (False, True):
        loss, gradients = loss_and_gradients(model, FlatCollator(labeled_only=keeps)(rows()))
        assert loss == pytest.approx(expected, rel=1e-5)
        torch.testing.assert_close(gradients, expected_gradients, atol=1e-4, rtol=1e-3)


def test_the_head_makes_logits_only_where_there_is_loss() -> None:
    model = model_of("llama", "sdpa")
    assert takes_logits_to_keep(model)
    batch = FlatCollator(labeled_only=True)(rows())
    predicted = sum(int((row["labels"][1:] != IGNORED).sum()) for row in rows())
    assert model(**batch, use_cache=False).logits.shape == (1, predicted, 99)


def test_cross_row_influence_detects_a_model_that_mixes_rows() -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    cpu = torch.device("cpu")
    assert cross_row_influence(model_of("llama", "sdpa"), 99, cpu, "fp32") < 0.1
    # OPT takes position_ids and transformers' masks, and does not hand the one to the other.
    options = {"ffn_dim": 32, "word_embed_proj_dim": 32, "num_attention_heads": 4}
    opt = AutoModelForCausalLM.from_config(AutoConfig.for_model("opt", **SHAPE | options))
    assert cross_row_influence(opt, 99, cpu, "fp32") > 1
    mamba = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("mamba", vocab_size=99, hidden_size=32, num_hidden_layers=1)
    )
    assert "state" in why_not_flat(mamba)


def test_packs_contain_every_row_once_and_are_those_of_best_fit() -> None:
    lengths = np.random.default_rng(1).integers(1, 65, 500)
    packs = Packs(lengths, 64, seed=7)
    first, second = packs.epoch(0), packs.epoch(1)
    for epoch in (first, second):
        assert len(epoch) == len(packs)
        assert sorted(np.concatenate(epoch).tolist()) == list(range(500))
        assert max(lengths[pack].sum() for pack in epoch) <= 64
    assert [pack.tolist() for pack in first] == [pack.tolist() for pack in Packs(lengths, 64, seed=7).epoch(0)]
    assert {tuple(pack.tolist()) for pack in first} != {tuple(pack.tolist()) for pack in second}
    assert 1 - lengths.sum() / (64 * len(packs)) == pytest.approx(packing_waste(lengths, 64))
    assert best_fit(np.array([5, 4, 3, 3, 1]), 8).tolist() == [0, 1, 0, 1, 1]


def test_group_by_length_batches_similar_rows_and_loses_none() -> None:
    lengths = np.random.default_rng(2).integers(1, 1000, 1003)
    order = ByLength(lengths, seed=3, together=8)
    epoch = order.epoch(0)
    assert sorted(epoch.tolist()) == list(range(1003))
    assert epoch.tolist() != order.epoch(1).tolist()
    batches = lengths[epoch][:1000].reshape(-1, 8)
    assert np.median(np.ptp(batches, axis=1)) < 50 < np.median(np.ptp(lengths[:1000].reshape(-1, 8), axis=1))


def test_the_largest_batches_of_packs_have_their_position() -> None:
    lengths = np.random.default_rng(4).integers(1, 65, 200)
    packs = Packs(lengths, 64, seed=1)
    (worst,) = worst_batches(
        lengths, micro_batch=2, accumulation=1, world=2, seed=1, epochs=1, count=1, order=packs, pads=False
    )
    units = packs.epoch(0)
    start = 2 * (2 * (worst.step - 1) + worst.rank)
    assert worst.rows == np.concatenate(units[start : start + 2]).tolist()
    assert worst.tokens == lengths[worst.rows].sum() == 128


@pytest.mark.train
def test_padding_free_and_padded_runs_have_equal_losses() -> None:
    from training.run_folder.events import Note, Planned

    settings: dict[str, Any] = {"gradient_accumulation_steps": 2, "micro_batch_size": 3}
    padded, flat = (trained(Recipe(settings=settings | more)) for more in ({"packing": "none"}, {}))
    assert flat.losses() == pytest.approx(padded.losses(), rel=1e-5)
    assert flat.evaluations() == pytest.approx(padded.evaluations(), rel=1e-5)
    assert [run.of(Planned)[0].packing for run in (padded, flat)] == ["none", "padding_free"]
    assert any("concatenated without padding" in note.message for note in flat.of(Note))
    assert flat.summary["strategy"]["attention"] == "sdpa_row_by_row"


@pytest.mark.train
def test_a_packed_run_counts_its_steps_in_packs() -> None:
    settings: dict[str, Any] = {
        "max_steps": None,
        "epochs": 2,
        "micro_batch_size": 2,
        "max_length": 60,
        "eval_split": 8,
    }
    run = trained(Recipe(settings=settings | {"packing": "packed"}))
    rows = 64 - 8
    assert rows / 4 / 2 < run.summary["steps"] < 2 * rows / 2 / 2  # two to four rows to a pack
    assert run.losses()[run.summary["steps"]] < run.losses()[1]


@pytest.mark.train
@pytest.mark.parametrize("kind", ["selective", "full", "offloaded"])
def test_recomputing_activations_changes_only_memory(kind: str) -> None:
    short = {"eval_split": 0, "max_steps": 3}
    plain, spared = (trained(Recipe(settings=short | {"gradient_checkpointing": name})) for name in ("none", kind))
    assert spared.losses() == pytest.approx(plain.losses(), rel=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of the methods that trl calls
def test_selective_checkpointing_recomputes_every_second_layer() -> None:
    from training.models.activation_checkpointing import checkpoint_every_second_layer

    model = model_of("llama", "sdpa").train()
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable({"use_reentrant": False})
    assert checkpoint_every_second_layer(model) == 1
    model.gradient_checkpointing_disable()
    model.gradient_checkpointing_enable({"use_reentrant": False})  # as trl does around a reference model
    assert sum(bool(getattr(module, "gradient_checkpointing", False)) for module in model.model.layers) == 1


def test_packing_is_refused_for_an_unsupported_model(tmp_path: Path) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    from training.batches.layout import choose_layout
    from training.config.run_config import RunConfig

    mamba = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("mamba", vocab_size=99, hidden_size=32, num_hidden_layers=1)
    )
    required = {"model": "m", "data": "d"}
    with pytest.raises(UserError, match=r"packing .*'packed'.* MambaForCausalLM"):
        choose_layout(RunConfig.model_validate(required | {"packing": "packed"}), mamba, 0)
    assert choose_layout(RunConfig.model_validate(required), mamba, 0).packing == "none"
