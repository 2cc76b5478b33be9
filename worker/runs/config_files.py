"""Files that a configuration names: their content takes the place of the path, so that a run depends on no file of a user."""

from collections.abc import Callable
from pathlib import Path

from training.chat import template
from training.chat.template import NAMED
from training.config import sharding
from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.errors import Problem

FIELDS = ("deepspeed_config", "chat_template")
_READERS: dict[str, Callable[[Path], str]] = {
    "deepspeed_config": sharding.deepspeed_from_file,
    "chat_template": template.from_file,
}
_MISSING = {
    "deepspeed_config": "is neither JSON nor an existing file.",
    "chat_template": f"is neither a Jinja template nor an existing file nor one of the names {', '.join(NAMED)}.",
}
_FIXES = {
    "deepspeed_config": "Give the path of a DeepSpeed JSON file, or its text.",
    "chat_template": f"Give a name ({', '.join(NAMED)}), the path of a .jinja file, or the text of a template.",
}


def with_text(config: RunConfig, field: str, find: Callable[[str], Path | None]) -> RunConfig:
    """The configuration with the content of the DeepSpeed file or chat template in place of its path or name.

    `find` finds the file.

    Raises:
        ConfigError: there is no such file, or it cannot be read or is invalid.
    """
    name = getattr(config, field)
    if not name or is_text(config, field):
        return config
    if field == "chat_template" and (named := NAMED.get(name.strip().lower())):
        return config.model_copy(update={field: named})
    path = find(name.strip())
    if path is None or not path.is_file():
        raise ConfigError([Problem(field, name, _MISSING[field], _FIXES[field])])
    return config.model_copy(update={field: text_of(field, path)})


def is_text(config: RunConfig, field: str) -> bool:
    """True if the setting has the content of a file; False if it is empty, or names one."""
    value = getattr(config, field)
    if field == "deepspeed_config":
        return sharding.own_deepspeed(config) is not None
    return bool(value) and template.is_source(value)


def text_of(field: str, path: Path) -> str:
    """The content of the file of a setting, checked.

    Raises:
        ConfigError: the file cannot be read, or is invalid.
    """
    try:
        return _READERS[field](path)
    except (OSError, ValueError) as error:
        words = str(error.strerror if isinstance(error, OSError) and error.strerror else error)
        words = words if words.endswith((".", "?")) else f"{words}."
        raise ConfigError([Problem(field, str(path), words, _FIXES[field])]) from None
