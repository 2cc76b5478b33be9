"""Shapes read from the classes of transformers: parameters, layers, what LoRA trains, and whether rows may be concatenated."""

import random
from typing import Any

import pytest

from benchmarks.families.inputs import TASKS, Family, families, on_meta, small
from benchmarks.families.measure import measured
from training.config.fields import parse
from training.forecast.forecast import estimate
from training.forecast.formula import trainable
from training.forecast.formula.activations import layer_bytes
from training.forecast.gpus import CARDS
from training.model_info.families import FAMILIES, padding_reasons, shape_of, why_padded
from training.model_info.shape import Mixer, ModelShape, as_document, from_document

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),  # libraries warn about small models
]

NAMED: dict[str, set[Mixer]] = {
    "gpt_oss": {Mixer.ATTENTION},
    "qwen3_next": {Mixer.ATTENTION, Mixer.LINEAR},
    "qwen3_5_text": {Mixer.ATTENTION, Mixer.LINEAR},
    "gemma3n_text": {Mixer.ATTENTION, Mixer.NONE},
    "gemma3": {Mixer.ATTENTION},
    "glm4": {Mixer.ATTENTION},
    "glm4_moe": {Mixer.ATTENTION},
    "deepseek_v2": {Mixer.LATENT},
    "deepseek_v3": {Mixer.LATENT},
    "lfm2": {Mixer.ATTENTION, Mixer.CONVOLUTION},
    "nemotron_h": {Mixer.ATTENTION, Mixer.STATE_SPACE, Mixer.NONE},
    "falcon": {Mixer.ATTENTION},
    "falcon_h1": {Mixer.ATTENTION, Mixer.STATE_SPACE},
    "mamba": {Mixer.STATE_SPACE},
    "jamba": {Mixer.ATTENTION, Mixer.STATE_SPACE},
    "rwkv": {Mixer.OTHER},
}
LOT = random.Random(17).sample(list(families()), 30)
"""Drawn by lot; `python -m benchmarks.families` tries all classes."""
SOME = 6


def shape(model_type: str) -> ModelShape:
    from training.models.layers import shape_of_model

    return shape_of_model(on_meta(small(model_type), "causal"))


@pytest.mark.parametrize(
    "family",
    [*LOT[:SOME], *(pytest.param(family, marks=pytest.mark.nightly) for family in LOT[SOME:])],
    ids=lambda family: f"{family.kind}-{family.model_type}",
)
def test_a_class_is_counted_exactly_or_transformers_cannot_build_it(family: Family) -> None:
    row = measured(family, trains=False)
    if not row.problem:
        assert (row.counted, row.adapter_counted) == (row.parameters, row.adapter)


@pytest.mark.parametrize("model_type", NAMED)
def test_layers_are_recognized_by_what_they_hold(model_type: str) -> None:
    found = shape(model_type)
    assert found.mixers == NAMED[model_type]
    assert bool(found.unknown) == bool({Mixer.OTHER, Mixer.LINEAR, Mixer.STATE_SPACE} & found.mixers)
    assert from_document(as_document(found)) == found


@pytest.mark.parametrize("model_type", sorted(FAMILIES))
def test_a_formula_agrees_with_the_class_on_small_models_too(model_type: str) -> None:
    from training.models.layers import shape_of_model, with_adapter

    config = small(model_type)
    kind = "seq2seq" if config.is_encoder_decoder else "causal"
    model = on_meta(config, kind)
    found, formula = shape_of_model(model), shape_of(config.to_dict())
    assert formula.parameters == found.parameters
    lora = parse({"model": "m", "data": "d", "method": "lora", "target_modules": "all-linear", "task": TASKS[kind]})
    exact = with_adapter(found, model, lora.task)
    assert trainable.count(lora, formula) == trainable.count(lora, exact)


def test_experts_shared_ones_and_latent_sizes_are_those_of_the_class() -> None:
    found = shape("deepseek_v3")
    sparse = next(stack for stack in found.stacks if stack.experts)
    dense = next(stack for stack in found.stacks if not stack.experts)
    assert (sparse.experts, sparse.routed, sparse.intermediate, sparse.shared) == (4, 2, 32, 32)
    assert dense.intermediate == 96
    assert sparse.latent == (24, 16, 16)


def test_a_vision_tower_is_counted_and_not_trained() -> None:
    found = shape("gemma3")
    assert 0 < found.unused < found.parameters
    assert (
        trainable.count(parse({"model": "m", "data": "d", "method": "full"}), found)[0]
        == found.parameters - found.unused
    )


def test_layers_that_no_formula_knows_get_no_verdict() -> None:
    found = estimate(parse({"model": "m", "data": "d"}), shape("rwkv"), card=CARDS["h100"])
    assert not found.fits
    assert found.unknown
    assert found.reasons == [f"The formula cannot say: {found.unknown}. Simulate a step."]


@pytest.mark.parametrize("model_type", ["llama", "qwen3_moe", "deepseek_v3", "mamba", "lfm2", "falcon_h1"])
def test_flat_padded_and_single_rows_have_equal_losses_or_are_refused_as_the_catalogue_says(model_type: str) -> None:
    row = measured(Family("causal", model_type))
    assert row.losses is not None and row.equal
    assert (row.losses[0] is None) == bool(row.flat)
    assert row.flat == why_padded(model_type)


def test_every_family_that_carries_a_state_is_padded() -> None:
    assert {"mamba", "mamba2", "jamba", "lfm2", "qwen3_next", "nemotron_h", "falcon_h1", "rwkv"} <= {
        name for name, reason in padding_reasons().items() if reason
    }
    assert not why_padded("llama") and not why_padded("an architecture that nobody tried")


def test_longer_rows_and_wider_layers_save_more() -> None:
    from training.forecast.formula.activations import Batch, Formats

    formats = Formats(stream=2, compute=2, casts=False, trains=False)

    def saved(found: ModelShape, tokens: int) -> int:
        batch: Any = Batch(1, tokens, tokens, tokens, flat=True)
        return sum(stack.layers * layer_bytes(found, stack, batch, formats) for stack in found.stacks)

    for model_type in ("deepseek_v3", "gpt_oss", "lfm2"):
        found = shape(model_type)
        assert 1.9 * saved(found, 256) <= saved(found, 512) <= 4.1 * saved(found, 256)
