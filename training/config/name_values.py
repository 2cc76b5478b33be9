"""Settings that are text with several values: `name=value, name=value`, as in `r=8, targets=[a, b], alpha={q_proj: 4}`, or names
separated by commas.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from training.config import yaml_text
from training.errors import UserError

_OWN_ARGUMENTS = ("messages", "conversation", "tools", "documents", "add_generation_prompt", "tokenize")


class OptionError(UserError):
    """A text that cannot be used; `corrected` is the text without the wrong value."""

    def __init__(self, message: str, fix: str, corrected: str) -> None:
        super().__init__("", None, message, fix)
        self.corrected = corrected


def as_names(text: str) -> list[str]:
    """Splits names separated by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def parse(given: str | None) -> dict[str, Any]:
    """Parses `name=value, name=value`; values have YAML's types.

    Raises:
        OptionError: the text does not have this form.
    """
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
    """`chat_template_kwargs` as arguments of a chat template.

    Raises:
        OptionError: not `name=value, ...`, or an argument that Lathe sets for each row.
    """
    values = parse(given)
    for name in values:
        if name in _OWN_ARGUMENTS:
            message = f"must not contain {name}: Lathe sets it for each row."
            raise OptionError(message, f"Remove {name}.", written({key: values[key] for key in values if key != name}))
    return values
