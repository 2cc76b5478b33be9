"""Checks what a stored configuration names before a user resumes, evaluates or serves the run.

A configuration is checked when it is submitted, but a row can also come from an archive. The web server checks it, because only the
web server knows LATHE_DATA_FOLDERS and LATHE_MODEL_FOLDERS. A worker trains only what was submitted or resumed.
"""

from collections.abc import Iterator

from training.chat.template import is_source
from training.config.fields import ConfigError, parse
from training.config.own_deepspeed import given
from training.config.run_config import RunConfig
from training.errors import Problem
from worker.allowed_paths import EVERYTHING, AllowedPaths, allowed
from worker.datasets.run_data import DATASET_ID, sources_of
from worker.store import accounts, database, sight
from worker.store.tables import LOCAL, Run

_CLONE_FIX = "Clone the run, which checks its settings again."


def admitted(run: Run, *, reach: AllowedPaths = EVERYTHING) -> RunConfig:
    """The configuration of a stored run, with its changed settings, if both its owner and the caller may name all that it names.

    `reach` is the caller's.

    Raises:
        ConfigError: one problem for each setting that is wrong or names what one of them may not name.
    """
    config = parse(run.config | run.stepped_down)
    for limits in (reach_of(run.owner), reach):
        if problems := list(_problems(config, limits)):
            raise ConfigError(problems)
    return config


def as_both_see(owner: str) -> Iterator[None]:
    """Runs the body of a loop once with the caller's view of the database and, if it differs, once with that of a run's owner."""
    with database.read() as session:
        views = {sight.user(), accounts.view_of(session=session, name=owner)}
    for user in views:
        with sight.seen_by(user):
            yield


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
            yield Problem(field, source.path, "is a path; a stored run has the id of a data set.", _CLONE_FIX)
    if config.chat_template and not is_source(config.chat_template):
        yield Problem("chat_template", config.chat_template, "is a path; a stored run has the text.", _CLONE_FIX)
    if config.deepspeed_config and given(config) is None:
        yield Problem("deepspeed_config", config.deepspeed_config, "is a path; a stored run has the text.", _CLONE_FIX)
