"""The ladder, the diagnosis of a log and the forecast name the same first step; 4-bit weights only where they take less memory."""

from random import Random
from typing import Any

import pytest

from training.config.machine import Machine
from training.config.run_config import RunConfig, stepped_down
from training.forecast import gpus as cards
from training.forecast.advice import advise
from training.forecast.forecast import estimate
from training.forecast.formula.activations import Batch
from training.forecast.formula.moments import MOMENTS
from training.forecast.step_down import PART_OF, first_step, next_rung, saves_memory
from training.model_info.families import shape_of
from training.rules import check
from worker.diagnosis.diagnosis import diagnose
from worker.forecasts.forecast import Setup, estimate_run

LLAMA_2_7B: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008,
    "num_hidden_layers": 32, "num_attention_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
MIXTRAL: dict[str, Any] = LLAMA_2_7B | {
    "model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": 14336,
}  # fmt: skip
CODE = {
    "forward": "out = model(**batch); training_step",
    "backward": "loss.backward()",
    "optimizer": "self.optimizer.step()",
}
T4 = cards.CARDS["t4"]


def config(**values: Any) -> RunConfig:
    return RunConfig.model_validate({"model": "m", "data": "d"} | values)


def drawn(seed: int) -> RunConfig:
    """A random configuration that no rule refuses."""
    dice = Random(seed)
    while True:
        ranks = dice.choice((1, 2, 4))
        found = config(
            method=dice.choice(("full", "lora")), strategy=dice.choice(("ddp", "zero2", "fsdp")) if ranks > 1 else "single",
            num_processes=ranks, micro_batch_size=dice.choice((1, 2, 3, 8)), gradient_accumulation_steps=dice.choice((1, 4)),
            gradient_checkpointing=dice.choice(("none", "selective", "full", "offloaded")), precision="fp16",
            max_length=dice.choice((512, 2048)), optimizer=dice.choice(("adamw", "sgd")), packing="none",
        )  # fmt: skip
        if not any(conflict.blocking for conflict in check(found, T4.machine(ranks))):
            return found


def out_of_memory(code: str) -> str:
    return (
        f'Traceback (most recent call last):\n  File "/lib/train.py", line 5, in main\n    {code}\n'
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 14.75 GiB of which "
        "1.00 MiB is free. 14.00 GiB is allocated by PyTorch, and 1.00 MiB is reserved by PyTorch but unallocated.\n"
    )


@pytest.mark.slow
def test_ladder_diagnosis_and_forecast_name_one_first_step() -> None:
    steps = []
    for asked in map(drawn, range(40)):
        found = estimate_run(Setup(asked, shape_of(LLAMA_2_7B), T4))
        if found.forecast.fits or PART_OF[found.forecast.moment] not in CODE:
            continue  # it would fail while it loads
        part, batch = PART_OF[found.forecast.moment], found.forecast.batch
        machine = T4.machine(asked.num_processes)
        rung = next_rung(asked, machine, part=part, has_checkpoint=False, tokens=batch.tokens)
        assert rung is None or found.first_step == rung, asked
        settings = asked.model_dump(mode="json")
        assert diagnose(out_of_memory(CODE[part]), config=settings).changes == (found.first_step or {}), asked
        steps.append(found.first_step)
    assert len({tuple(step or ()) for step in steps}) >= 3
    assert sum(step is not None for step in steps) >= 20


@pytest.mark.parametrize("values", [LLAMA_2_7B, MIXTRAL], ids=["dense", "fused experts"])
def test_four_bit_weights_are_advised_only_where_they_take_less(values: dict[str, Any]) -> None:
    shape, machine = shape_of(values), Machine("cuda", 1, ["T4"], [T4.memory_bytes], False)
    asked = config(precision="fp16", micro_batch_size=1, gradient_checkpointing="offloaded", max_length=2048)
    packed = {"method": "qlora", "quantization": "4bit"}
    less = estimate(stepped_down(asked, packed), shape, card=T4).peak_bytes < estimate(asked, shape, card=T4).peak_bytes
    assert saves_memory(asked, packed, machine, shape) == less
    assert not saves_memory(stepped_down(asked, packed), packed, machine, shape)  # the same run takes as much
    assert not saves_memory(asked, packed, machine)  # the shape is unknown


def test_without_a_rung_the_first_step_is_one_that_a_person_chooses() -> None:
    asked = config(method="full", micro_batch_size=1, precision="fp16", gradient_checkpointing="offloaded")
    machine, shape = T4.machine(1), shape_of(LLAMA_2_7B)
    assert next_rung(asked, machine, part="optimizer", has_checkpoint=True) is None
    given: dict[str, Any] = {"part": "optimizer", "has_checkpoint": True, "shape": shape}
    assert first_step(asked, machine, **given) == {"optimizer": "adamw_8bit"}
    adapter = config(micro_batch_size=1, precision="fp16", gradient_checkpointing="offloaded")
    assert first_step(adapter, machine, **given) == {"method": "qlora", "quantization": "4bit"}


def test_every_advice_with_four_bit_weights_takes_less_than_the_same_without() -> None:
    asked, shape, batch = (
        config(precision="fp16", micro_batch_size=2, max_length=512),
        shape_of(LLAMA_2_7B),
        Batch(2, 512, 1024, 1024),
    )
    packed = [one for one in advise(asked, shape, T4, batch=batch, count=99) if "quantization" in one.changes]
    assert packed
    for one in packed:
        unpacked = {name: value for name, value in one.changes.items() if name not in ("method", "quantization")}
        smaller = Batch(one.forecast.batch.rows, 512, one.forecast.batch.tokens, one.forecast.batch.loss_tokens)
        assert (
            one.forecast.peak_bytes < estimate(stepped_down(asked, unpacked), shape, card=T4, batch=smaller).peak_bytes
        )


def test_each_moment_of_a_forecast_has_a_part_of_the_step_to_make_smaller() -> None:
    assert set(PART_OF) == set(MOMENTS)
