"""The data sets that a configuration of LLaMA-Factory or axolotl names, as files with a column mapping."""

import json
from pathlib import Path
from typing import Any

from training.data.mapping import parse_mapping, write_mapping
from training.errors import DataError
from training.foreign.entries import Answer, Values, is_off

_INFO = "dataset_info.json"
_ROLES = {  # column of dataset_info.json: role of Lathe's mapping
    "prompt": "instruction", "query": "input", "response": "output", "system": "system", "messages": "messages", "tools": "tools",
    "chosen": "chosen", "rejected": "rejected", "kto_tag": "label",
}  # fmt: skip
_USUAL = {"instruction": "instruction", "input": "input", "output": "output", "messages": "conversations"}
_AXOLOTL = {"field_messages": "messages", "field_instruction": "instruction", "field_input": "input", "field_output": "output",
            "field_system": "system", "field": "text", "field_chosen": "chosen", "field_rejected": "rejected"}  # fmt: skip
_ON_HUB = "{0} is a data set of the hub: import it on the page Data sets, then pick it."
_FIRST = " Lathe trains on one data set: the first one is taken; join the files to train on all of them."


def of_llamafactory(value: Any, values: Values, folder: Path, setting: str) -> Answer:
    """The first of LLaMA-Factory's data sets, as its dataset_info.json describes it."""
    wanted = [
        name.strip()
        for name in (value if isinstance(value, list) else str(value or "").split(","))
        if str(name).strip()
    ]
    if not wanted:
        return Answer({}, "is empty.")
    more = _FIRST if len(wanted) > 1 else ""
    if _is_file(folder / wanted[0]):
        return Answer({setting: str(folder / wanted[0])}, more.strip())
    info = _info(folder, str(values.get("dataset_dir") or "data"))
    if info is None:
        return Answer(
            None, f"{_INFO}, which names the file of {wanted[0]}, is not here. Set {setting} to the file." + more
        )
    described = _entry(info, wanted[0])
    if described is None:
        return Answer(None, f"{info} has no entry {wanted[0]}." + more)
    if "file_name" not in described:
        hub = described.get("hf_hub_url") or described.get("ms_hub_url") or wanted[0]
        return Answer(None, _ON_HUB.format(hub) + more)
    found = {setting: str(info.parent / described["file_name"])}
    named = described.get("columns")
    listed = named.items() if isinstance(named, dict) else ()
    columns = {_ROLES[name]: str(path) for name, path in listed if name in _ROLES and path}
    return Answer(found | _mapping(columns, setting), more.strip())


def of_axolotl(value: Any, folder: Path) -> Answer:
    """The first of axolotl's data sets."""
    listed = value if isinstance(value, list) else []
    if not listed or not isinstance(listed[0], dict):
        return Answer({}, "is empty.") if is_off(value) else Answer(None, "is not a list of data sets.")
    first, more = listed[0], _FIRST if len(listed) > 1 else ""
    files = first.get("data_files")
    name = str((files[0] if isinstance(files, list) else files) or first.get("path") or "")
    kind = first.get("type")
    fields = {**first, **kind} if isinstance(kind, dict) else first
    columns = {role: str(fields[field]) for field, role in _AXOLOTL.items() if fields.get(field)}
    settings: Values = {"task": "pretraining"} if kind in ("completion", "pretrain") else {}
    if not _is_file(folder / name):
        note = (
            _ON_HUB.format(name)
            if name.count("/") == 1 and "." not in name.split("/")[1][-6:]
            else f"{name} is not here."
        )
        return Answer(settings | _mapping(columns, "data") or None, note + more)
    return Answer(settings | {"data": str(folder / name)} | _mapping(columns, "data"), more.strip())


def _is_file(path: Path) -> bool:
    """True if there is such a file; False also for a name that no file can have."""
    try:
        return path.is_file()
    except OSError:
        return False


def _entry(info: Path, name: str) -> dict[str, Any] | None:
    """The entry of a data set in dataset_info.json; None if there is none, or the file cannot be read."""
    try:
        listed = json.loads(info.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    described = listed.get(name) if isinstance(listed, dict) else None
    return described if isinstance(described, dict) else None


def _info(folder: Path, named: str) -> Path | None:
    """dataset_info.json in the folder that the file names, from the file's folder upwards."""
    places = [above / part / _INFO for above in (folder, *folder.parents) for part in (named, ".")]
    return next((place for place in places if _is_file(place)), None)


def _mapping(columns: dict[str, str], setting: str) -> Values:
    """The mapping as a setting, unless the columns have the names that Lathe detects."""
    if setting != "data" or all(_USUAL.get(role) == path or role == path for role, path in columns.items()):
        return {}
    if set(columns) == {"instruction"}:  # a single column is plain text
        columns = {"text": columns["instruction"]}
    text = write_mapping(columns)
    try:
        parse_mapping(text)
    except DataError:
        return {}
    return {"columns": text}
