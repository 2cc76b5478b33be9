"""Every key of a DeepSpeed JSON: its type, default, bounds and help sentence."""

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

_DEPRECATED = {
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
_FILE = Path(__file__).with_name("deepspeed_keys.json")
SENTENCES: dict[str, str] = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Key:
    """A key by its path ("zero_optimization.stage"). `kind` "open" is a section that is passed on unchecked."""

    path: str
    kind: str
    default: Any = None
    choices: tuple[Any, ...] = ()
    least: float | None = None
    above: float | None = None
    most: float | None = None
    optional: bool = False
    instead: str = ""
    sentence: str = ""

    @property
    def bounds(self) -> str:
        """The accepted values as text."""
        if self.choices:
            return f"one of {', '.join(json.dumps(choice) for choice in self.choices)}"
        kind = {
            "integer": "an integer",
            "number": "a number",
            "boolean": "true or false",
            "text": "text",
            "list": "a list",
        }
        limits = [
            f"{word} {limit:g}"
            for word, limit in (("at least", self.least), ("above", self.above), ("at most", self.most))
            if limit is not None
        ]
        return ", ".join([kind.get(self.kind, "an object"), *limits])


@cache
def keys() -> dict[str, Key]:
    """Every key by its path."""
    return {path: _key(path, entry) for path, entry in _catalogue()["keys"].items()}


@cache
def other_names() -> dict[str, str]:
    """Paths that DeepSpeed accepts for another key, and the path of that key."""
    catalogue = _catalogue()["keys"]
    return {
        f"{path.rpartition('.')[0]}.{entry['also']}": path for path, entry in catalogue.items() if "also" in entry
    } | _DEPRECATED


@cache
def removed() -> frozenset[str]:
    """Keys of older versions that DeepSpeed no longer accepts."""
    return frozenset(_catalogue()["removed"])


def version() -> str:
    """The DeepSpeed version of the keys."""
    return str(_catalogue()["deepspeed"])


@cache
def _catalogue() -> dict[str, Any]:
    catalogue: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return catalogue


def _key(path: str, entry: dict[str, Any]) -> Key:
    return Key(
        path=path,
        kind=entry["type"],
        default=entry.get("default"),
        choices=tuple(entry.get("choices", ())),
        least=entry.get("ge"),
        above=entry.get("gt"),
        most=entry.get("le"),
        optional=entry.get("optional", False) or entry.get("default", 0) is None,
        instead=entry.get("instead", ""),
        sentence=SENTENCES.get(path, ""),
    )
