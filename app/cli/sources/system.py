"""The installation, of this machine or of the server."""

from typing import Any
from urllib.parse import quote

from app.cli.options import ready
from app.cli.sources.server import chosen

_SECONDS = 600.0  # disks can be large


def document() -> dict[str, Any]:
    """The installation, as `lathe system --json` prints it; measures the disk use first."""
    if server := chosen():
        return dict(server.send("GET", "/api/system", params={"wait": True}, seconds=_SECONDS))
    from app.documents import system

    ready()
    return system.document(everything, wait=True)


def free(kinds: list[str]) -> dict[str, Any]:
    """Frees disk space, and returns what was freed and what could not be."""
    if server := chosen():
        server.send("POST", "/api/system/free", json={"kinds": kinds}, seconds=_SECONDS)
        return dict(document()["disk"]["freeing"])
    from app.documents import disk
    from worker.disk import background
    from worker.disk.offers import Freeable
    from worker.store.tables import LOCAL

    ready()
    progress = background.disk().free(tuple(Freeable(kind) for kind in kinds), everything, LOCAL)
    return dict(disk.document(background.disk().wait(), progress, everything)["freeing"])


def use_machine(name: str) -> None:
    """Takes back a machine that was put aside after failures.

    Raises:
        NotAside: it is not put aside.
    """
    if server := chosen():
        server.send("POST", f"/api/system/machines/{quote(name, safe='')}/use")
        return
    from worker.store import database
    from worker.store.system import aside

    ready()
    with database.write() as session:
        aside.use(session=session, host=name)


def everything(_owner: str) -> bool:
    """The permission of a user of the command line."""
    return True
