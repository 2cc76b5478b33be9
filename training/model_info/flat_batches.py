"""Which architectures keep rows apart in a batch without padding, from `families.json`. No torch.

`python -m benchmarks.families --write` writes that file: it tries each class of transformers with a random model. A run tries its
own model again before the first step (training/batches/padding_free.py).
"""

import json
from functools import cache
from pathlib import Path

CATALOGUE = Path(__file__).with_name("families.json")


@cache
def reasons() -> dict[str, str]:
    """Why the rows of an architecture are padded, by model type; empty where they are not. Without those that were not tried."""
    known: dict[str, str] = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    return known


def why_padded(model_type: str) -> str:
    """Why the rows of a model are padded; empty if they are not, or if it is unknown."""
    return reasons().get(model_type, "")
