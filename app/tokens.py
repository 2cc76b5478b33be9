"""The server's token: made at the first start, in a file that only the server's user can read. Who has it acts as that user."""

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from app.lock import CannotStart
from app.peers import is_loopback
from worker.accounts import new_token
from worker.settings import Settings

TOKEN_FILE = "token"  # noqa: S105 the name of the file


def server_token(settings: Settings) -> str:
    """The token: LATHE_TOKEN, else that of the data folder, where one is made if there is none."""
    if settings.token is not None:
        return settings.token.get_secret_value()
    path = _path(settings)
    return _read(path) or _make(path, replace=False)


def rotate(settings: Settings) -> str:
    """Another token in the data folder; the one before is worth nothing from then on."""
    return _make(_path(settings), replace=True)


def is_server_token(settings: Settings, token: str) -> bool:
    """Whether it is the server's token, in a time that tells nothing about it."""
    return secrets.compare_digest(token.encode("utf-8", "replace"), server_token(settings).encode())


def address_with_token(address: str, settings: Settings) -> str:
    """The address that signs a browser in. A token that came through the environment is not written anywhere."""
    return address if settings.token is not None else f"{address}/?token={server_token(settings)}"


def cookie_name(settings: Settings) -> str:
    """The cookie that keeps a token: one for each data folder, for browsers send a cookie to every port of a host."""
    return f"lathe-{hashlib.sha256(os.fsencode(settings.data_dir)).hexdigest()[:8]}"


def check_listening(settings: Settings) -> None:
    """Sees that a server which other machines can reach has a token that somebody has set up.

    Raises:
        CannotStart: it has none.
    """
    if is_loopback(settings.host) or settings.token or settings.proxy_user_header or _read(_path(settings)):
        return
    raise CannotStart(
        f"LATHE_HOST (given: {settings.host!r}) can be reached from other machines, and no token is set up to keep them out. "
        "Run `lathe token` once, or set LATHE_TOKEN; then start again. Or listen on 127.0.0.1."
    )


def _path(settings: Settings) -> Path:
    return settings.data_dir / TOKEN_FILE


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def _make(path: Path, *, replace: bool) -> str:
    """Writes a new token whole or not at all; where another process was quicker, its token is the one."""
    with TemporaryDirectory(dir=path.parent, prefix=".token-") as folder:  # with mode 0700
        new = Path(folder, TOKEN_FILE)
        new.touch(mode=0o600)
        new.write_text(f"{new_token()}\n", encoding="ascii")
        if replace:
            new.replace(path)
        else:
            with suppress(FileExistsError):
                os.link(new, path)
    return _read(path)
