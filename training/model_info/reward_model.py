"""Whether a model gives a conversation one score, as the files of its folder say. No torch."""

import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.errors import UserError
from training.model_info.config_json import read_config
from training.model_info.folder import adapter_base, describe_model, tensor_shapes

FIX = (
    'Give the id of a finished run of task reward, {"reward": "model", "run": "ID"}, or the folder of a sequence classifier with '
    "one label."
)


def check_reward_model(folder: Path, name: str) -> None:
    """Checks the folder of a model, or of an adapter, that users call `name`. Raises UserError if it is incomplete, generates
    text, or has several labels; its field is rewards."""
    if adapter_base(folder) is None:
        describe_model(str(folder))
        values = read_config(folder)
        architectures = values.get("architectures") or []
        if not isinstance(architectures, list) or not all(isinstance(one, str) for one in architectures):
            raise _not_readable(name, "architectures", architectures, "a list of names")
        check_labels(architectures, _labels(values, name), name)
        return
    try:
        heads = {shape[0] for key, shape in tensor_shapes(folder).items() if _is_head(key)}
    except (OSError, ValueError, KeyError, struct.error) as error:
        raise UserError("rewards", name, f"has an adapter that cannot be read: {error}.", "Copy it again.") from None
    check_labels(
        ["ForSequenceClassification"] if heads else ["an adapter without a score"], max(heads, default=0), name
    )


def check_labels(architectures: Sequence[str], labels: int, name: str) -> None:
    """Checks the architectures of a config.json and its number of labels. Raises UserError if they are not those of a reward
    model."""
    architecture = next(iter(architectures), "unknown")
    if not architecture.endswith("ForSequenceClassification"):
        raise UserError("rewards", name, f"is no reward model: its architecture is {architecture}.", FIX)
    if labels != 1:
        raise UserError("rewards", name, f"is no reward model: it has {labels} labels.", FIX)


def _labels(values: dict[str, Any], name: str) -> int:
    number, names = values.get("num_labels"), values.get("id2label") or {"0": "", "1": ""}
    if number and not isinstance(number, int):
        raise _not_readable(name, "num_labels", number, "a whole number")
    if not number and not isinstance(names, dict):
        raise _not_readable(name, "id2label", names, "an object with the name of each label")
    return number or len(names)


def _not_readable(name: str, key: str, value: Any, expected: str) -> UserError:
    message = f"has {key} {value!r:.80} in its config.json, which is not {expected}."
    return UserError("rewards", name, message, f"Correct {key} in config.json, or save the model again.")


def _is_head(key: str) -> bool:
    """True for the weight of the layer that makes scores, in the names of an adapter's tensors."""
    return key.endswith((".score.weight", ".classifier.weight", ".classifier.out_proj.weight"))
