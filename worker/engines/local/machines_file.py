"""`machines.json` in a run's folder: where the machines of the attempt meet. Reading it proves that they share the folder."""

import time
from pathlib import Path

from pydantic import BaseModel

from training.errors import UserError
from training.whole_file import write_whole
from worker.machine.process_identity import hostname

FILE = "machines.json"
_PATIENCE_SECONDS = 30.0  # a network file system may show a new file late


class Meeting(BaseModel):
    """The attempt, and the address and port of its first machine."""

    attempt: int
    address: str
    port: int


def write(run_dir: Path, meeting: Meeting) -> None:
    """Writes the file, whole or not at all."""
    write_whole(run_dir / FILE, meeting.model_dump_json())


def read(run_dir: Path, attempt: int) -> Meeting:
    """The meeting of `attempt`.

    Raises:
        UserError: the first machine's file is not visible here.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        meeting = _read(run_dir / FILE)
        if meeting is not None and meeting.attempt == attempt:
            return meeting
        time.sleep(0.5)
    raise UserError(
        "LATHE_DATA_DIR",
        str(run_dir.parent.parent),
        f"is not the folder in which the run's first machine writes: {hostname()} does not see its files.",
        "Set it to the same shared folder on every machine, or set num_machines to 1.",
    )


def _read(path: Path) -> Meeting | None:
    try:
        return Meeting.model_validate_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
