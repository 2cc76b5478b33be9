"""What a run does, as short texts: runs that do the same have the same text, which an index finds without reading configurations."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def of_model(config: Mapping[str, Any]) -> str:
    """A text of 16 letters and digits, the same for all runs that train this model with this method."""
    return _digest(config.get("model"), config.get("method"))


def of_work(config: Mapping[str, Any], dataset_id: str | None) -> str:
    """As `of_model`, of runs that also train on the same data: a stored data set, or else what `data` names."""
    return _digest(config.get("model"), config.get("method"), dataset_id or config.get("data"))


def _digest(*values: Any) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()[:16]
