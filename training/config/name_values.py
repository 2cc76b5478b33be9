"""Settings that are text with several values: `name=value, name=value`, as in `r=8, targets=[a, b], alpha={q_proj: 4}`, or names
separated by commas, such as the trackers of `report_to` and the scores of `eval_metrics`. No torch.
"""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import yaml

from training.config import yaml_text
from training.errors import Problem, UserError

TRACKERS = ("tensorboard", "wandb", "mlflow", "trackio")
"""Names of trackers, which are those of their packages too."""
METRICS = ("exact_match", "f1", "rouge1", "rouge2", "rougeL")
"""Scores of an answer against the expected one, from 0 to 1."""
MINOR_METRICS = ("rouge1", "rouge2")
"""Those that pages leave out."""
_OWN_ARGUMENTS = ("messages", "conversation", "tools", "documents", "add_generation_prompt", "tokenize")


class OptionError(UserError):
    """A text that cannot be used; `corrected` is the text without the wrong value."""

    def __init__(self, message: str, fix: str, corrected: str) -> None:
        super().__init__("", None, message, fix)
        self.corrected = corrected


def as_names(text: str | None) -> list[str]:
    """Splits names separated by commas."""
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def parse(given: str | None) -> dict[str, Any]:
    """Parses `name=value, name=value`; values have YAML's types. Raises OptionError if the text does not have this form."""
    text = "{" + re.sub(r"(^|,)\s*([A-Za-z_]\w*)\s*=", r"\1 \2: ", given or "") + "}"
    try:
        values = yaml_text.load(text)
    except yaml_text.YamlTextError:
        values = None
    named = isinstance(values, dict) and all(isinstance(key, str) and "=" not in key for key in values)
    tree: Any = yaml.compose(text, Loader=yaml.SafeLoader) if named else None
    # A name without a value, which YAML reads as null.
    if not named or any(node.tag == "tag:yaml.org,2002:null" and not node.value for _, node in tree.value):
        raise OptionError("must be name=value, name=value.", "Example: r=8, alpha=16.", "")
    return dict(values)


def written(values: Mapping[str, Any]) -> str:
    """Options as text that `parse` reads."""
    return ", ".join(f"{key}={value_text(value)}" for key, value in values.items())


def value_text(value: Any) -> str:
    """A value as text that `parse` reads."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.-]*", value) and yaml_text.load(value) == value
    return str(value) if plain else json.dumps(value, ensure_ascii=False)


def template_arguments(given: str | None) -> dict[str, Any]:
    """`chat_template_kwargs` as arguments of a chat template. Raises OptionError if it is not
    `name=value, ...`, or names an argument that Lathe sets for each row."""
    values = parse(given)
    for name in values:
        if name in _OWN_ARGUMENTS:
            message = f"must not contain {name}: Lathe sets it for each row."
            raise OptionError(message, f"Remove {name}.", written({key: values[key] for key in values if key != name}))
    return values


def _names(value: str | Sequence[Any]) -> list[str]:
    return as_names(value if isinstance(value, str) else ",".join(map(str, value)))


def canonical_trackers(value: Any) -> Any:
    """The value of `report_to` for what a file, a flag or a form gives, or None. Raises ValueError if a name is not that of a
    tracker."""
    if not isinstance(value, (str, list, tuple)):
        return value
    names = [name.lower() for name in _names(value) if name.lower() != "none"]
    _check_names(names, TRACKERS)
    return ", ".join(dict.fromkeys(names)) or None


def canonical_metrics(value: Any) -> Any:
    """The value of `eval_metrics` for what a file, a flag or a form gives. Raises ValueError if a name is not that of a score, or
    there is none."""
    if not isinstance(value, (str, list, tuple)):
        return value
    if not (names := _names(value)):
        raise ValueError(f"needs at least one of {', '.join(METRICS)}")
    _check_names(names, METRICS)
    return ", ".join(dict.fromkeys(names))


def _check_names(names: Sequence[str], choices: Sequence[str]) -> None:
    if unknown := [name for name in names if name not in choices]:
        raise ValueError(f"has {unknown[0][:60]!r}, which is not one of {', '.join(choices)}")


def is_installed(tracker: str) -> bool:
    """True if this Python can import the tracker."""
    spec = find_spec(tracker)
    return spec is not None and spec.origin is not None  # a folder such as ./wandb is a package without an origin


def missing_trackers(text: str | None) -> Sequence[Problem]:
    """A problem for each tracker of the setting that is not installed here."""
    fix = "Run `pip install {0}` in the worker's environment, or leave {0} out."
    return [
        Problem("report_to", tracker, "is not installed.", fix.format(tracker))
        for tracker in as_names(text)
        if not is_installed(tracker)
    ]
