"""Files that a configuration names: their content takes the place of the path, so that a run depends on no file of a user."""

from pathlib import Path

from training.chat import template
from training.chat.named_templates import NAMED
from training.config import own_deepspeed
from training.config.fields import ConfigError
from training.config.run_config import RunConfig
from training.errors import Problem
from worker.allowed_paths import AllowedPaths

_TEMPLATE_FIX = f"Give a name ({', '.join(NAMED)}), the path of a .jinja file, or the text of a template."
_DEEPSPEED_FIX = "Give the path of a DeepSpeed JSON file, or its text."


def with_files(config: RunConfig, reach: AllowedPaths) -> RunConfig:
    """The configuration with the content of its DeepSpeed file and of its chat template's in place of the paths.

    Raises:
        ConfigError: a file cannot be read, or is invalid.
    """
    return with_template_file(with_deepspeed_file(config, reach), reach)


def with_template_file(config: RunConfig, reach: AllowedPaths) -> RunConfig:
    """The configuration with the text of its chat template in place of a path or a name.

    Raises:
        ConfigError: the file cannot be read, or is no template.
    """
    given = config.chat_template
    if not given or template.is_source(given):
        return config
    if named := NAMED.get(given.strip().lower()):
        return config.model_copy(update={"chat_template": named})
    path = reach.find(given.strip())
    if path is None or not path.is_file():
        message = f"is neither a Jinja template nor an existing file nor one of the names {', '.join(NAMED)}."
        raise ConfigError([Problem("chat_template", given, message, _TEMPLATE_FIX)])
    return config.model_copy(update={"chat_template": template_text(path)})


def with_deepspeed_file(config: RunConfig, reach: AllowedPaths) -> RunConfig:
    """The configuration with the content of its DeepSpeed file in place of the path.

    Raises:
        ConfigError: the file cannot be read, or is invalid.
    """
    given = config.deepspeed_config
    if not given or own_deepspeed.given(config) is not None:
        return config
    path = reach.find(given)
    if path is None or not path.is_file():
        message = "is neither JSON nor an existing file."
        raise ConfigError([Problem("deepspeed_config", given, message, _DEEPSPEED_FIX)])
    return config.model_copy(update={"deepspeed_config": deepspeed_text(path)})


def template_text(path: Path) -> str:
    """The chat template in a file.

    Raises:
        ConfigError: the file cannot be read, or is no template.
    """
    try:
        return template.from_file(path)
    except (OSError, ValueError) as error:
        raise _unreadable("chat_template", path, error, _TEMPLATE_FIX) from None


def deepspeed_text(path: Path) -> str:
    """The DeepSpeed configuration in a file, as text.

    Raises:
        ConfigError: the file cannot be read, or is invalid.
    """
    try:
        return own_deepspeed.from_file(path)
    except (OSError, ValueError) as error:
        raise _unreadable("deepspeed_config", path, error, _DEEPSPEED_FIX) from None


def _unreadable(field: str, path: Path, error: OSError | ValueError, fix: str) -> ConfigError:
    words = str(error.strerror if isinstance(error, OSError) and error.strerror else error)
    return ConfigError([Problem(field, str(path), words if words.endswith((".", "?")) else f"{words}.", fix)])
