"""`python -m migrations "add a column"` writes the next migration: the changes in worker/store/tables/ since the last one."""

import argparse
import os
import tempfile

from alembic import command

from worker.store import database, schema


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m migrations", description=__doc__)
    parser.add_argument("message", help="what the migration does, in a few words")
    message = parser.parse_args().message
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"LATHE_DATA_DIR": folder, "LATHE_DATABASE_URL": ""}
        database.migrate()
        with database.migrating() as connection:
            config = database.migration_config(connection)
            number = int(schema.revisions()[-1]) + 1
            command.revision(config, message, autogenerate=True, rev_id=f"{number:04d}")
        database.dispose()


if __name__ == "__main__":
    main()
