"""The server's token, created at the first start in a file that only the server's user can read. It grants that user's rights."""

import hashlib
import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from app.errors import CannotStart
from training.addresses import is_loopback, loopback
from worker.settings import TOKEN_FILE, Settings
from worker.store.accounts import new_token


def server_token(settings: Settings) -> str:
    """The token: LATHE_TOKEN, else the one in the data folder, which is created if missing."""
    if settings.token is not None:
        return settings.token.get_secret_value()
    path = _path(settings)
    return _read(path) or _make(path, replace=False)


def rotate(settings: Settings) -> str:
    """Replaces the token in the data folder; the old one stops working."""
    return _make(_path(settings), replace=True)


def is_server_token(settings: Settings, token: str) -> bool:
    """True if it is the server's token; takes the same time for every token."""
    return secrets.compare_digest(token.encode("utf-8", "replace"), server_token(settings).encode())


def address_with_token(address: str, settings: Settings) -> str:
    """The address that signs a browser in; without a token from the environment, which is never printed."""
    return address if settings.token is not None else f"{address}/?token={server_token(settings)}"


def cookie_name(settings: Settings) -> str:
    """The name of the token's cookie: one per data folder, as browsers send a cookie to all ports of a host."""
    return f"lathe-{hashlib.sha256(os.fsencode(settings.data_dir)).hexdigest()[:8]}"


def check_listening(settings: Settings) -> None:
    """Checks that a server which other machines can reach has a token. Raises CannotStart if it has none."""
    if is_loopback(settings.host) or settings.token or settings.proxy_user_header or _read(_path(settings)):
        return
    fix = f"Run `lathe token` once or set LATHE_TOKEN, then start again. Or listen on {loopback()}."
    raise CannotStart("LATHE_HOST", settings.host, "can be reached by other machines, but there is no token.", fix)


def _path(settings: Settings) -> Path:
    return settings.data_dir / TOKEN_FILE


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""


def _make(path: Path, *, replace: bool) -> str:
    """Writes a new token atomically and returns it; without `replace`, an existing token wins."""
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
