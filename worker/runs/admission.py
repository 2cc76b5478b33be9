"""Checks what a stored configuration names before a user resumes, evaluates or serves the run.

A configuration is checked when it is submitted, but a row can also come from an archive. The web server checks it, because only the
web server knows LATHE_DATA_FOLDERS and LATHE_MODEL_FOLDERS. A worker trains only what was submitted or resumed.
"""

from collections.abc import Iterator

from training.config.fields import ConfigError, parse
from training.config.run_config import RunConfig
from training.errors import Problem
from worker import allowed_paths
from worker.allowed_paths import EVERYTHING, AllowedPaths
from worker.datasets.run_data import DATASET_ID, sources_of
from worker.runs import config_files
from worker.runs.settle import Settled, settle
from worker.store import accounts, database, sight
from worker.store.tables import LOCAL, Run

_CLONE_FIX = "Clone the run, which checks its settings again."


def admitted(run: Run, *, allowed: AllowedPaths = EVERYTHING) -> Settled:
    """The configuration of a stored run, with its changed settings, if both its owner and the caller may name all that it names.

    `allowed` is what the caller may name.

    Raises:
        ConfigError: one problem for each setting that is wrong or names what one of them may not name.
    """
    config = parse(run.settings)
    owners = EVERYTHING if run.owner == LOCAL else allowed_paths.allowed()
    for paths in (owners, allowed):
        settled = settle(config, paths, run.owner)
        if problems := [*settled.refused, *(_paths(config) if paths.data is not None else ())]:
            raise ConfigError(problems)
    return settled


def as_both_see(owner: str) -> Iterator[None]:
    """Runs the body of a loop once with the caller's view of the database and, if it differs, once with that of a run's owner."""
    with database.read() as session:
        views = {sight.user(), accounts.view_of(session=session, name=owner)}
    for user in views:
        with sight.seen_by(user):
            yield


def _paths(config: RunConfig) -> Iterator[Problem]:
    """The paths in place of which a run that was submitted has an id or the content of the file."""
    for field, source in sources_of(config):
        if not DATASET_ID.fullmatch(source.path):
            yield Problem(field, source.path, "is a path; a stored run has the id of a data set.", _CLONE_FIX)
    for field in config_files.FIELDS:
        value = getattr(config, field)
        if value and not config_files.is_text(config, field):
            yield Problem(field, value, "is a path; a stored run has the text.", _CLONE_FIX)
