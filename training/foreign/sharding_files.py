"""Takes strategy, offload and sizes from what `deepspeed`, `fsdp` and `fsdp_config` give: sections, texts, and names of files."""

from collections.abc import Callable
from typing import Any

from training.config import yaml_text
from training.deepspeed_file import reader as deepspeed_reader
from training.foreign.entries import IS_EMPTY, Answer, Values, is_off, names
from training.foreign.sharding import from_deepspeed, from_fsdp, from_name, from_zero, looks_like_deepspeed

Reader = Callable[[str], str | None]
"""The text of a named file; None if it is not here."""


def of_fsdp(words: Any, section: Any, read: Reader) -> Answer:
    """The settings of fsdp, words such as `full_shard offload`, together with those of fsdp_config, a section or a file's name."""
    note = ""
    if isinstance(section, str):
        text = read(section)
        note = "" if text is not None else f"{section[:200]} is not here. Import that file too."
        section = _section(text or "")
    parts = [part for part in (section, words) if isinstance(part, dict)]
    together = {name: value for part in parts for name, value in part.items()}
    return Answer(from_fsdp(together, "" if isinstance(words, dict) else names(words).lower()), note)


def _section(text: str) -> Values:
    """The mapping of a JSON or YAML text, empty if it is none."""
    try:
        values = yaml_text.load(text)
    except yaml_text.YamlTextError:
        return {}
    return values if isinstance(values, dict) else {}


def of_deepspeed(value: Any, read: Reader) -> Answer:
    """The settings of a DeepSpeed JSON: in place, as text, as the name of a file, or of one that the program brings."""
    if is_off(value):
        return IS_EMPTY
    if isinstance(value, dict) and "deepspeed_config_file" in value:
        return of_deepspeed(value["deepspeed_config_file"], read)
    if isinstance(value, dict):
        return Answer(from_deepspeed(value) if looks_like_deepspeed(value) else from_zero(value))
    name = str(value)
    text = name if name.lstrip().startswith("{") else read(name)
    if text is not None:
        return _of_json(text, name)
    settings = from_name(name)
    return Answer(settings, "" if settings else f"{name[:200]} is not here. Import that file too, or set strategy.")


def _of_json(text: str, name: str) -> Answer:
    """The settings of a DeepSpeed JSON, with comments or without."""
    try:
        file = deepspeed_reader.read(text).values
    except deepspeed_reader.LooseJsonError as error:
        return Answer(None, f"{name} is not valid JSON: {error}.")
    return Answer(from_deepspeed(file)) if looks_like_deepspeed(file) else Answer(None, f"{name} is no DeepSpeed file.")
