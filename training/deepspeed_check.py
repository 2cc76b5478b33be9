"""A DeepSpeed JSON of somebody's own, checked key by key: what is wrong is named with its line, its key and what to write."""

import json
import math
from difflib import get_close_matches
from typing import Any

from training.deepspeed_keys import Key, keys, removed
from training.loose_json import Document, LooseJsonError, read

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
"""Keys that may be "auto" and follow the run's settings; so may those under optimizer.params and scheduler.params."""

_LONGEST = 1_000_000
_MOST_TOLD = 12


def canonical(value: Any) -> str | None:
    """The setting as it is kept: checked JSON in one line, or a file's path as it was given, which is read when the run is made.

    Raises:
        ValueError: naming each fault by its line.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    text = json.dumps(value, indent=1) if isinstance(value, dict) else str(value)
    return checked(text) if text.lstrip().startswith(("{", "[", "#", "//", "/*")) else text.strip()


def checked(text: str) -> str:
    """The JSON of a file in one line.

    Raises:
        ValueError: naming each fault by its line.
    """
    if len(text) > _LONGEST:
        raise ValueError(f"is longer than {_LONGEST:,} characters")
    try:
        document = read(text)
    except LooseJsonError as error:
        raise ValueError(str(error)) from None
    found = sorted([*document.faults, *faults(document)], key=_line)
    if found:
        more = [f"and {len(found) - _MOST_TOLD} more"] if len(found) > _MOST_TOLD else []
        raise ValueError("; ".join([*found[:_MOST_TOLD], *more]))
    return json.dumps(document.values)


def faults(document: Document) -> list[str]:
    """What is wrong with the keys and values, each with its line."""
    left_open = {fault.split(":", 1)[0] for fault in document.faults}
    return [
        f"line {document.lines[path]}: {fault}"
        for path, value in _walk(document.values)
        if f"line {document.lines[path]}" not in left_open and (fault := _fault(".".join(path), value))
    ]


def _walk(values: dict[str, Any], above: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], Any]]:
    """Every key with its value, sections before what is in them; what is in an open or unknown one is left out."""
    found: list[tuple[tuple[str, ...], Any]] = []
    for name, value in values.items():
        path = (*above, name)
        found.append((path, value))
        known = keys().get(".".join(path))
        if isinstance(value, dict) and known is not None and known.kind == "section":
            found += _walk(value, path)
    return found


def _fault(path: str, value: Any) -> str:
    name = path.rsplit(".", 1)[-1]
    known = keys().get(path)
    if path in removed():
        return f'"{name}" was taken out of DeepSpeed, which refuses it: delete it.'
    if known is None:
        return f'"{name}" is no key of DeepSpeed{_place(path)}.{_nearest(path)}'
    if known.instead:
        return f'"{name}" is outdated: use {_current(known.instead)} instead.'
    return "" if _fits(known, value) else f'"{name}" is {_wrong(known, value)}'


def _wrong(known: Key, value: Any) -> str:
    if value == "auto":
        return f'never "auto": write {known.bounds}, or delete it.'
    if isinstance(value, str) and value.startswith("[") and "|" in value:
        options = ", ".join(part.strip() for part in value.strip("[]").split("|"))
        return f"{json.dumps(value)}, a choice left open: write one of {options}."
    return f"{json.dumps(value)[:60]}, and takes {known.bounds}."


_TYPES: dict[str, type | tuple[type, ...]] = {"section": dict, "open": dict, "boolean": bool, "text": str, "list": list}


def _fits(known: Key, value: Any) -> bool:
    if value is None or value == "auto":
        return known.optional if value is None else known.path in AUTO
    if known.choices:
        return value in known.choices and not isinstance(value, bool)
    if known.kind in _TYPES:
        return isinstance(value, _TYPES[known.kind])
    return known.kind == "any" or _is_number(known, value)


def _is_number(known: Key, value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        return False
    if known.kind == "integer" and value != int(value):
        return False
    if known.path in AUTO and known.path.startswith(("train_", "gradient_acc")) and value < 1:
        return False
    low = (known.least is None or value >= known.least) and (known.above is None or value > known.above)
    return low and (known.most is None or value <= known.most)


def _place(path: str) -> str:
    section = path.rpartition(".")[0]
    return f" in {section}" if section else ""


def _nearest(path: str) -> str:
    section, _, name = path.rpartition(".")
    beside = {key.rpartition(".")[2]: key for key in keys() if key.rpartition(".")[0] == section}
    if close := get_close_matches(name, beside, n=1, cutoff=0.7):
        return f" Did you mean {close[0]}?"
    elsewhere = [key for key in keys() if key.rpartition(".")[2] == name]
    return f" It belongs in {elsewhere[0].rpartition('.')[0] or 'the outermost object'}." if elsewhere else ""


def _current(instead: str) -> str:
    named = f"zero_optimization.stage3_{instead}"
    return named.rpartition(".")[2] if named in keys() else instead


def _line(fault: str) -> int:
    return int(fault.split(":", 1)[0].removeprefix("line "))
