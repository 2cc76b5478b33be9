"""An installation on each database, in a temporary folder: SQLite, and a new database on the PostgreSQL server of the tests."""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.installation import postgresql_database
from worker.settings import PREFIX, get_settings
from worker.store import database


@contextlib.contextmanager
def installations(kinds: list[str]) -> Iterator[dict[str, dict[str, str]]]:
    """Yields the LATHE_ variables of each kind of database that answers, with its tables made; removes everything afterwards."""
    with contextlib.ExitStack() as stack:
        found = {}
        for kind in kinds:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lathe-limits-")))
            variables = {f"{PREFIX}DATA_DIR": str(folder)}
            if kind == "postgresql":
                try:
                    variables[f"{PREFIX}DATABASE_URL"] = stack.enter_context(postgresql_database())
                except SystemExit as missing:
                    print(f"Not measured: {missing}", file=sys.stderr)
                    continue
            use(variables)
            database.migrate()
            found[kind] = variables
        stack.callback(database.dispose)
        yield found


def use(variables: dict[str, str]) -> None:
    """Makes this process, and those that it forks, use the installation."""
    database.dispose()
    kept = "LATHE_TEST_POSTGRES_URL"
    for name in [name for name in os.environ if name.startswith(PREFIX) and name != kept]:
        del os.environ[name]
    os.environ |= variables
    get_settings.cache_clear()
