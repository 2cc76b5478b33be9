"""A resumed run takes exactly the same steps: rows, learning rate, dropout and weights."""

from pathlib import Path
from typing import Any

import pytest
from trained import copy_of, resumable, trained

from training.run_folder.events import Resumed

pytestmark = pytest.mark.train
LORA, FULL = {"method": "lora"}, {"method": "full"}
ADALORA = {"method": "adalora", "method_options": "target_r=2, init_r=4, tinit=1, tfinal=1"}
P_TUNING = {"method": "p_tuning", "method_options": "num_virtual_tokens=4, encoder_hidden_size=32"}
RECOMPUTED = {"method": "lora", "gradient_checkpointing": "full"}
PACKED = {"method": "lora", "packing": "packed", "max_length": 32, "micro_batch_size": 1}
nightly = pytest.mark.nightly


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("single", LORA), ("single", FULL), ("single", PACKED), ("ddp", LORA), ("fsdp", LORA), ("fsdp", RECOMPUTED),
        ("zero2", FULL), ("zero3", FULL), ("single", ADALORA), ("single", P_TUNING),
        pytest.param("zero3", LORA, marks=nightly), pytest.param("zero3", PACKED, marks=nightly),
    ],
    ids=str,
)  # fmt: skip
def test_a_resumed_run_takes_exactly_the_same_steps(tmp_path: Path, strategy: str, settings: dict[str, Any]) -> None:
    recipe = resumable(strategy, **settings)
    whole = trained(recipe).losses()
    assert list(whole) == [1, 2, 3, 4]
    run_dir = copy_of(recipe, tmp_path / "run", "checkpoint-4", "events.jsonl", "adapter", "model")
    again = recipe.train(run_dir)
    assert [event.step for event in again.of(Resumed)] == [2]
    assert again.losses() == pytest.approx({step: loss for step, loss in whole.items() if step > 2}, rel=1e-6)
