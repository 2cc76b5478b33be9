"""The keys of a DeepSpeed JSON, and the check of a user's key by key. Each error names the line, the key and the fix."""

import json
import math
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from training.deepspeed_file.reader import Document, LooseJsonError, read
from training.nearest import nearest

_DEPRECATED = {
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
_FILE = Path(__file__).with_name("deepspeed_keys.json")
SENTENCES: dict[str, str] = tomllib.loads(Path(__file__).with_name("sentences.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Key:
    """A key by its path ("zero_optimization.stage"), as deepspeed_keys.json has it. `type` "open" is a section that is passed on
    unchecked, `also` another name of the key."""

    path: str
    type: str
    default: Any = None
    choices: Sequence[Any] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    optional: bool = False
    instead: str = ""
    also: str = ""
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
            for word, limit in (("at least", self.ge), ("above", self.gt), ("at most", self.le))
            if limit is not None
        ]
        return ", ".join([kind.get(self.type, "an object"), *limits])


@cache
def keys() -> dict[str, Key]:
    """Every key by its path."""
    return {path: Key(path, sentence=SENTENCES.get(path, ""), **entry) for path, entry in _catalogue()["keys"].items()}


@cache
def other_names() -> dict[str, str]:
    """Paths that DeepSpeed accepts for another key, and the path of that key."""
    also = {f"{path.rpartition('.')[0]}.{key.also}": path for path, key in keys().items() if key.also}
    return also | _DEPRECATED


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


AUTO = frozenset(
    {
        "train_batch_size",
        "train_micro_batch_size_per_gpu",
        "gradient_accumulation_steps",
        "gradient_clipping",
        "fp16.enabled",
        "bf16.enabled",
        "zero_optimization.stage",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.stage3_prefetch_bucket_size",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.stage3_max_reuse_distance",
        "zero_optimization.offload_optimizer.device",
        "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
    }
)
"""Keys that may be "auto", besides those under optimizer.params and scheduler.params. Lathe fills in the run's settings."""

_SWITCHES = {"cpu_offload": "offload_optimizer", "cpu_offload_param": "offload_param"}
_MAX_CHARACTERS = 50_000  # files of users have a few thousand
_MOST_KEYS = 500
_MAX_FAULTS = 12
TOLERANT = frozenset(
    {"", "activation_checkpointing", "aio", "data_types", "flops_profiler", "optimizer", "scheduler", "torch_autocast"}
)
"""Sections in which DeepSpeed ignores keys that it does not know; the empty name is the outermost object."""


def canonical(value: Any) -> str | None:
    """The stored value of the setting: checked JSON in one line, or an unchanged file path, which `submit` reads. Raises
    ValueError if the JSON is not valid; names each error with its line."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    text = json.dumps(value, indent=1) if isinstance(value, dict) else str(value)
    return checked(text) if text.lstrip().startswith(("{", "[", "#", "//", "/*")) else text.strip()


def checked(text: str) -> str:
    """The JSON of a file in one line. Raises ValueError if the JSON is not valid; names each error with its line."""
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"is longer than {_MAX_CHARACTERS:,} characters")
    try:
        document = read(text)
    except LooseJsonError as error:
        raise ValueError(str(error)) from None
    if len(document.lines) > _MOST_KEYS:
        raise ValueError(f"has {len(document.lines):,} keys; at most {_MOST_KEYS} are possible")
    document = _renamed(document)
    errors = sorted([*document.faults, *islice(faults(document), _MAX_FAULTS + 1)], key=_line)
    if errors:
        more = ["and more"] if len(errors) > _MAX_FAULTS else []
        raise ValueError("; ".join([*errors[:_MAX_FAULTS], *more]))
    return json.dumps(document.values)


def faults(document: Document) -> Iterator[str]:
    """The errors in keys and values in their order, each with its line."""
    faulty_lines = {fault.split(":", 1)[0] for fault in document.faults}
    for path, value in _walk(document.values):
        if f"line {document.lines[path]}" not in faulty_lines and (fault := _fault(".".join(path), value)):
            yield f"line {document.lines[path]}: {fault}"


def _renamed(document: Document) -> Document:
    """The document with the usual names of ZeRO's keys, where DeepSpeed accepts others."""
    zero = document.values.get("zero_optimization")
    if not isinstance(zero, dict):
        return document
    lines = dict(document.lines)
    for name in list(zero):
        path = f"zero_optimization.{name}"
        usual = other_names().get(path, path).rpartition(".")[2]
        if name in _SWITCHES and isinstance(zero[name], bool):
            usual = _SWITCHES[name]
            value = {"device": "cpu" if zero.pop(name) else "none"}
            zero.setdefault(usual, value)
            lines.setdefault(("zero_optimization", usual, "device"), document.lines[("zero_optimization", name)])
        elif usual != name:
            zero.setdefault(usual, zero.pop(name))
        lines.setdefault(("zero_optimization", usual), document.lines[("zero_optimization", name)])
    return replace(document, lines=lines)


def _walk(values: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every key with its value, a section before its keys; without the keys of open or unknown sections."""
    keys_and_values: list[tuple[tuple[str, ...], Any]] = []
    for name, value in values.items():
        path = (*above, name)
        keys_and_values.append((path, value))
        known = keys().get(".".join(path))
        if isinstance(value, dict) and known is not None and known.type == "section":
            keys_and_values += _walk(value, path)
    return keys_and_values


def _fault(path: str, value: Any) -> str:
    name = path.rsplit(".", 1)[-1]
    known = keys().get(path)
    if path in removed():
        return f'"{name}" was removed from DeepSpeed: delete it.'
    section = path.rpartition(".")[0]
    if known is None and section in TOLERANT and (name.startswith(("_", "comment")) or not _nearest(path)):
        return ""  # DeepSpeed ignores it: a comment, another program's section, or a key of an older version
    if path == "steps_per_print" and value == "inf":
        return ""  # accelerate's value for never
    if known is None:
        return f'"{name}" is not a DeepSpeed key{_place(path)}.{_nearest(path)}'
    if known.instead:
        return f'"{name}" is deprecated: use {_current(known.instead)} instead.'
    return "" if _fits(known, value) else f'"{name}" {_wrong(known, value)}'


def _wrong(known: Key, value: Any) -> str:
    if value == "auto":
        return f'cannot be "auto": write {known.bounds}, or delete it.'
    if isinstance(value, str) and value.startswith("[") and "|" in value:
        options = ", ".join(part.strip() for part in value.strip("[]").split("|"))
        return f"is the placeholder {json.dumps(value)}: write one of {options}."
    return f"is {json.dumps(value)[:60]}, but must be {known.bounds}."


_TYPES: dict[str, type | tuple[type, ...]] = {"section": dict, "open": dict, "boolean": bool, "text": str, "list": list}


def _fits(known: Key, value: Any) -> bool:
    if value is None or value == "auto":
        return known.optional if value is None else known.path in AUTO
    if known.choices:
        return value in known.choices and not isinstance(value, bool)
    if known.type in _TYPES:
        return isinstance(value, _TYPES[known.type])
    return known.type == "any" or _is_number(known, value)


def _is_number(known: Key, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    if known.type == "integer" and value != int(value):
        return False
    if known.path in AUTO and known.path.startswith(("train_", "gradient_acc")) and value < 1:
        return False
    above_minimum = (known.ge is None or value >= known.ge) and (known.gt is None or value > known.gt)
    return above_minimum and (known.le is None or value <= known.le)


def _place(path: str) -> str:
    section = path.rpartition(".")[0]
    return f" in {section}" if section else ""


def _nearest(path: str) -> str:
    section, _, name = path.rpartition(".")
    siblings = {key.rpartition(".")[2]: key for key in keys() if key.rpartition(".")[0] == section}
    if close := nearest(name, siblings, cutoff=0.7):
        return f" Did you mean {close[0]}?"
    elsewhere = [key for key in keys() if key.rpartition(".")[2] == name]
    return f" It belongs in {elsewhere[0].rpartition('.')[0] or 'the outermost object'}." if elsewhere else ""


def _current(instead: str) -> str:
    path = f"zero_optimization.stage3_{instead}"
    return path.rpartition(".")[2] if path in keys() else instead


def _line(fault: str) -> int:
    return int(fault.split(":", 1)[0].removeprefix("line "))
