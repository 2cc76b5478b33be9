"""The data sets that a configuration of LLaMA-Factory or axolotl names, as files with a column mapping."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from training.config.data_sets import Source, canonical, written
from training.data.mapping import parse_mapping, write_mapping
from training.errors import DataError
from training.foreign.chat_keys import turns_of
from training.foreign.entries import Answer, Entry, Outcome, Values, is_off

_INFO = "dataset_info.json"
_ROLES = {  # column of dataset_info.json: role of Lathe's mapping
    "prompt": "instruction", "query": "input", "response": "output", "system": "system", "messages": "messages", "tools": "tools",
    "chosen": "chosen", "rejected": "rejected", "kto_tag": "label",
}  # fmt: skip
_USUAL = {"instruction": "instruction", "input": "input", "output": "output", "messages": "conversations"}
_AXOLOTL = {"field_messages": "messages", "field_instruction": "instruction", "field_input": "input", "field_output": "output",
            "field_system": "system", "field": "text", "field_chosen": "chosen", "field_rejected": "rejected"}  # fmt: skip
_UPLOAD = "upload the file on the page Data sets, then pick it."
_FORMAT = "{0} is a format of axolotl; Lathe renders these rows by the chat template."
_BY_TEMPLATE = {"None", "chat_template", "completion", "pretrain", "sharegpt", "input_output"}
_BY_MODEL = (
    "Lathe renders rows by the chat template; write the format into one of your own (chat_template), or into the rows."
)
_OF_HUB = "belongs to a data set of the hub."
_OF_A_SET: dict[str, tuple[Outcome, str]] = {
    **dict.fromkeys(("format", "no_input_format", "system_format"), (Outcome.UNSUPPORTED, _BY_MODEL)),
    **dict.fromkeys(("system_prompt", "system_prompt_field"), (Outcome.UNSUPPORTED, "write it into the rows.")),
    **dict.fromkeys(("name", "split", "revision", "trust_remote_code", "ds_type"), (Outcome.NO_EFFECT, _OF_HUB)),
    **dict.fromkeys(
        ("shards", "shards_idx", "preprocess_shards"), (Outcome.UNSUPPORTED, "set data_slice or max_samples.")
    ),
    "conversation": (Outcome.UNSUPPORTED, _BY_MODEL),
    "chat_template": (Outcome.UNSUPPORTED, "set chat_template, which holds for all data sets."),
    "roles": (Outcome.UNSUPPORTED, "Lathe knows the usual names of roles; rename others in the rows."),
    "message_property_mappings": (
        Outcome.UNSUPPORTED,
        "Lathe finds role and content by their usual names; set columns for others.",
    ),
}
"""Keys of one of axolotl's data sets that become no setting."""
_READ = {*_AXOLOTL, "path", "data_files", "type", "message_field_training", "message_field_training_detail", "roles_to_train",
         "train_on_eos", "train_on_eot", "drop_system_message"}  # fmt: skip
_NAMES_OF_MESSAGES = frozenset(
    (
        "role",
        "from",
        "content",
        "value",
        "user",
        "human",
        "assistant",
        "gpt",
        "model",
        "system",
        "tool",
        "ipython",
        "tool_calls",
    )
)
_ON_HUB = "{0} is a data set of the hub: import it on the page Data sets, then pick it."
_LEFT_OUT = "{0} Training leaves it out."


@dataclass(frozen=True)
class _Found:
    """A data set: the entry of Lathe's setting, or None and the reason."""

    source: Source | None
    note: str = ""


def of_llamafactory(value: Any, values: Values, folder: Path, setting: str) -> Answer:
    """LLaMA-Factory's data sets, as its dataset_info.json describes them, with the weights of interleave_probs."""
    wanted = [
        name.strip()
        for name in (map(str, value) if isinstance(value, list) else str(value or "").split(","))
        if name.strip()
    ]
    if not wanted:
        return Answer({}, "is empty.")
    info = _info(folder, str(values.get("dataset_dir") or "data"))
    found = [_llamafactory_set(name, folder, info, setting) for name in wanted]
    weights = _weights(values, len(wanted)) if setting == "data" else [None] * len(wanted)
    return _answer(
        [
            replace(one, source=one.source and replace(one.source, weight=weight))
            for one, weight in zip(found, weights, strict=True)
        ],
        setting,
    )


def _llamafactory_set(name: str, folder: Path, info: Path | None, setting: str) -> _Found:
    if _is_file(folder / name):
        return _Found(Source(str(folder / name)))
    if info is None:
        return _Found(None, f"{_INFO}, which names the file of {name}, is not here. Set {setting} to the file.")
    described = _entry(info, name)
    if described is None:
        return _Found(None, f"{info} has no entry {name}.")
    if "file_name" not in described:
        return _Found(None, _ON_HUB.format(described.get("hf_hub_url") or described.get("ms_hub_url") or name))
    named = described.get("columns")
    listed = named.items() if isinstance(named, dict) else ()
    columns = {_ROLES[column]: str(path) for column, path in listed if column in _ROLES and path}
    rows = described.get("num_samples")
    most = rows if isinstance(rows, int) and not isinstance(rows, bool) and rows > 0 else None
    return _Found(Source(str(info.parent / str(described["file_name"])), max_rows=most, columns=_mapping(columns)))


def _weights(values: Values, count: int) -> list[float | None]:
    """The weights of interleaved data sets; without probabilities they alternate."""
    if not str(values.get("mix_strategy") or "").startswith("interleave") or count < 2:
        return [None] * count
    given = values.get("interleave_probs")
    listed = given if isinstance(given, list) else str(given or "").split(",")
    try:
        weights = [float(one) for one in listed if str(one).strip()]
    except (TypeError, ValueError):
        weights = []
    return [*weights] if len(weights) == count and min(weights) > 0 else [1.0] * count


def of_names(value: Any, folder: Path, setting: str) -> Answer:
    """Data sets by path, as a list or separated by blanks, each with an optional number of rows: `rows.jsonl#500`."""
    named = [str(one) for one in value] if isinstance(value, list) else str(value or "").split()
    return _answer([_of_name(name, folder) for name in named], setting) if named else Answer({}, "is empty.")


def _of_name(name: str, folder: Path) -> _Found:
    path, _, rows = name.partition("#")
    if _is_file(folder / path):
        return _Found(Source(str(folder / path), max_rows=int(rows) if rows.isdigit() and int(rows) else None))
    on_hub = path.count("/") == 1 and not path.startswith(".") and "." not in path.split("/")[1][-6:]
    return _Found(None, _ON_HUB.format(path) if on_hub else f"{path} is not here.")


def of_axolotl(value: Any, folder: Path | None, setting: str) -> Answer:
    """axolotl's data sets, each with its format and columns. Without a folder no file is looked up."""
    listed = value if isinstance(value, list) else []
    if not listed or not all(isinstance(one, dict) for one in listed):
        return Answer({}, "is empty.") if is_off(value) else Answer(None, "is not a list of data sets.")
    kinds = {str(one.get("type")) for one in listed}
    plain = setting == "data" and kinds <= {"completion", "pretrain"}
    more: Values = {"task": "pretraining"} if plain else {}
    turns = [turns_of(one) for one in listed] if setting == "data" else []
    for settings, _ in turns:
        more |= settings
    answer = _answer([_axolotl_set(one, folder) for one in listed], setting, more)
    formats = sorted(kind for one in listed if (kind := str(one.get("type"))) not in _BY_TEMPLATE and "{" not in kind)
    notes = dict.fromkeys(
        [*(_FORMAT.format(kind) for kind in formats), *(note for _, missing in turns for note in missing)]
    )
    return replace(answer, note=" ".join([answer.note, *notes]).strip())


def keys_of_sets(key: str, value: Any) -> list[Entry]:
    """Entries for the keys of axolotl's data sets that become no setting, so that none is lost."""
    entries = []
    for number, described in enumerate(value if isinstance(value, list) else []):
        whole = described if isinstance(described, dict) else {}
        kind = whole.get("type")
        nested = {f"type.{name}": one for name, one in kind.items()} if isinstance(kind, dict) else {}
        for name, given in (whole | nested).items():
            plain = str(name).removeprefix("type.")
            usual = plain in ("roles", "message_property_mappings") and _usual_names(given)
            if plain not in _READ and not is_off(given) and not usual:
                outcome, note = _OF_A_SET.get(
                    plain, (Outcome.UNSUPPORTED, "Lathe does not know this key of axolotl's data sets.")
                )
                entries.append(Entry(f"{key}[{number}].{name}", given, outcome, note=note))
    return entries


def _usual_names(named: Any) -> bool:
    """True if roles and fields of messages have names that Lathe finds by itself."""
    listed = (
        [one for value in named.values() for one in (value if isinstance(value, list) else [value])]
        if isinstance(named, dict)
        else [""]
    )
    return {str(one).lower() for one in listed} <= _NAMES_OF_MESSAGES


def _axolotl_set(described: Values, folder: Path | None) -> _Found:
    files = described.get("data_files")
    name = str((files[0] if isinstance(files, list) and files else files) or described.get("path") or "")
    kind = described.get("type")
    fields = {**described, **kind} if isinstance(kind, dict) else described
    columns = {role: str(fields[field]) for field, role in _AXOLOTL.items() if fields.get(field)}
    if folder is not None and _is_file(folder / name):
        return _Found(Source(str(folder / name), columns=_mapping(columns)))
    on_hub = name.count("/") == 1 and "." not in name.split("/")[1][-6:]
    reason = _ON_HUB.format(name) if on_hub else _UPLOAD if folder is None else f"{name} is not here."
    return _Found(Source("", columns=_mapping(columns)), reason)


def _answer(found: list[_Found], setting: str, more: Values | None = None) -> Answer:
    """The setting for the data sets that are here; names the others."""
    settings = more or {}
    here = [one.source for one in found if one.source and one.source.path]
    missing = [one.note for one in found if one.note]
    if not here:  # of a single data set the mapping is known all the same
        first = found[0].source
        known = {"columns": first.columns} if len(found) == 1 and first and first.columns and setting == "data" else {}
        return Answer(settings | known or None, " ".join(missing))
    note = " ".join(_LEFT_OUT.format(reason) for reason in missing)
    if len(here) == 1:
        here = [replace(here[0], weight=None)]
    if len(here) == 1 and setting == "data" and here[0].columns:
        return Answer(settings | {setting: written([replace(here[0], columns=None)]), "columns": here[0].columns}, note)
    try:
        return Answer(settings | {setting: canonical([vars(one) for one in here])}, note)
    except ValueError as error:
        return Answer(None, f"{error}.")


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


def _mapping(columns: dict[str, str]) -> str | None:
    """The mapping as text, unless the columns have the names that Lathe detects."""
    if all(_USUAL.get(role) == path or role == path for role, path in columns.items()):
        return None
    if set(columns) == {"instruction"}:  # a single column is plain text
        columns = {"text": columns["instruction"]}
    text = write_mapping(columns)
    try:
        parse_mapping(text)
    except DataError:
        return None
    return text
