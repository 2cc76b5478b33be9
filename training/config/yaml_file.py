"""Reads and writes a RunConfig as YAML."""

from pathlib import Path
from typing import Any

import yaml

from training.config import yaml_text
from training.config.data_sets import as_lists
from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.errors import Problem


def read_config(path: Path, overrides: dict[str, Any] | None = None) -> RunConfig:
    """The configuration in a YAML (or JSON) file, updated with `overrides` (setting name to value). Raises ConfigError if the
    file cannot be read or is not a mapping, or a setting is wrong."""
    try:
        values = yaml_text.load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, f"cannot be read: {error.strerror}.", "Give the path of a YAML file.") from None
    except (yaml_text.YamlTextError, UnicodeDecodeError) as error:
        raise _unreadable(path, f"is not valid YAML: {error}", "Each line is `setting: value`.") from None
    if not isinstance(values, dict):
        raise _unreadable(
            path, "has no settings.", "Each line is `setting: value`, for example `learning_rate: 0.0002`."
        )
    return parse({str(key): value for key, value in values.items()} | (overrides or {}))


def to_yaml(config: RunConfig) -> str:
    """The configuration as YAML, in the order of the form, without settings that have their default value."""
    values = as_lists(config.model_dump(mode="json", exclude_defaults=True))
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _unreadable(path: Path, message: str, fix: str) -> ConfigError:
    return ConfigError([Problem("configuration file", str(path), message, fix)])
