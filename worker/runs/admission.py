"""The gate through which every stored configuration passes before anything is done with it.

A configuration is checked when it is submitted, but a row can also come from an archive, from an older version or from an account
whose folders have changed since. So whoever trains, resumes, evaluates or serves a run takes its configuration from here.
"""

from collections.abc import Iterator

from training.chat.template import is_source
from training.config.fields import ConfigError, parse
from training.config.own_deepspeed import given
from training.config.run_config import Changes, RunConfig
from training.errors import Problem
from worker.allowed_paths import EVERYTHING, AllowedPaths, allowed
from worker.datasets.run_data import DATASET_ID, sources_of
from worker.store.tables import LOCAL, Run

_CLONE_FIX = "Clone the run, which checks its settings again."


def admitted(run: Run, changes: Changes | None = None, *, reach: AllowedPaths | None = None) -> RunConfig:
    """The configuration with which a stored run may train, be evaluated or be served, with `changes` to its settings.

    It is checked with what the run's owner may name, and with `reach`: that of the caller, if this is another one.

    Raises:
        ConfigError: one problem for each setting that is wrong or names what the owner or the caller may not name.
    """
    config = parse(run.config | run.stepped_down | (changes or {}))
    for limits in (reach_of(run.owner), reach or EVERYTHING):
        if problems := list(_problems(config, limits)):
            raise ConfigError(problems)
    return config


def reach_of(owner: str) -> AllowedPaths:
    """What the owner of a run may name in its configuration: the server's user everything, an account its folders."""
    return EVERYTHING if owner == LOCAL else allowed()


def _problems(config: RunConfig, reach: AllowedPaths) -> Iterator[Problem]:
    yield from reach.problems(config)
    if reach.data is None:
        return
    # Submitting has replaced each of these by an id or the content of the file.
    for field, source in sources_of(config):
        if not DATASET_ID.fullmatch(source.path):
            yield Problem(field, source.path, "is a path in a stored run, not the id of a data set.", _CLONE_FIX)
    if config.chat_template and not is_source(config.chat_template):
        yield Problem("chat_template", config.chat_template, "is a path in a stored run.", _CLONE_FIX)
    if config.deepspeed_config and given(config) is None:
        yield Problem("deepspeed_config", config.deepspeed_config, "is a path in a stored run.", _CLONE_FIX)
