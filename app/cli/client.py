"""The client of all commands. It speaks REST: with the server in LATHE_SERVER, or in this process with the local database."""

import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from training.errors import NotFound, Problem, UserError
from training.files import whole_file

if TYPE_CHECKING:
    import httpx

VARIABLE = "LATHE_SERVER"
TOKEN = "LATHE_TOKEN"  # noqa: S105 - the name of a variable
INSECURE = "LATHE_INSECURE"
MACHINES = "system/machines"
_CONNECT_SECONDS = 10.0
_READ_SECONDS = 60.0
_TRIES = 3
_PAGE = 1000


class ServerError(UserError):
    """The server refused a request, or did not answer as Lathe does."""


class Unreachable(ServerError):  # noqa: N818
    """The server did not answer."""


@dataclass(frozen=True)
class Client:
    """A client of a server, by its address without a final slash and the token for it; without an address, of this machine.

    In this process, what a route raises is raised as it is. `database`: creates the tables of an empty database first.
    """

    address: str = ""
    token: str = ""
    database: bool = True

    @property
    def remote(self) -> bool:
        """True if the data are those of a server."""
        return bool(self.address)

    @property
    def pages(self) -> str:
        """The address of the pages: the server, the running `lathe up` of this data folder, or the one in the settings."""
        if self.remote:
            return self.address
        from psutil import pid_exists

        from app.local.lock import LOCK_FILE, address_of
        from worker.settings import get_settings

        settings = get_settings()
        with suppress(OSError, ValueError, KeyError):
            holder = json.loads((settings.data_dir / LOCK_FILE).read_text(encoding="utf-8"))
            if pid_exists(holder["pid"]):
                return str(holder["address"])
        return address_of(settings.host, settings.port)

    def get(self, path: str, **params: Any) -> Any:
        """The JSON answer to a GET request; parameters that are None are left out."""
        return self.send("GET", path, params=params)

    def text(self, path: str, method: str = "GET", **request: Any) -> str:
        """The answer to a request as text; errors as `send`."""
        with self._answer(method, path, **request) as answer:
            return str(answer.text)

    def listed(self, path: str, name: str, limit: int, **params: Any) -> list[dict[str, Any]]:
        """The first `limit` entries of a list."""
        return [entry for page in self.answers(path, name, limit, **params) for entry in page[name]]

    def answers(self, path: str, name: str, limit: int, **params: Any) -> Iterator[dict[str, Any]]:
        """The answers with the first `limit` entries of a list, of which each has at most 1,000."""
        for offset in range(0, limit, _PAGE):
            wanted = min(limit - offset, _PAGE)
            page = self.get(path, limit=wanted, offset=offset, **params)
            yield page
            if len(page[name]) < wanted:
                break

    def send(self, method: str, path: str, *, seconds: float = _READ_SECONDS, **request: Any) -> Any:
        """The JSON answer to a request, None if it is empty. `request` is as for httpx.

        Raises:
            Unreachable: there was no answer within `seconds`.
            ServerError: the server refused the request.
        """
        with self._answer(method, path, seconds=seconds, **request) as answer:
            return self._json(answer) if answer.content else None

    def submit(self, path: str, values: Any, *, seconds: float = _READ_SECONDS) -> dict[str, Any]:
        """Sends a run or a sweep, again if no answer came; its key keeps it from being queued twice. Errors as `send`."""
        key = {"Idempotency-Key": secrets.token_urlsafe(16)}
        for _ in range(_TRIES - 1):
            with suppress(Unreachable):
                return dict(self.send("POST", path, json=values, headers=key, seconds=seconds))
        return dict(self.send("POST", path, json=values, headers=key, seconds=seconds))

    def download(self, path: str, target: Path) -> None:
        """Writes the answer to a GET request into a file, completely or not at all."""
        with whole_file(target) as part, self._answer("GET", path, stream=True) as answer, part.open("wb") as file:
            for chunk in answer.iter_bytes():
                file.write(chunk)

    @contextmanager
    def _answer(self, method: str, path: str, *, stream: bool = False, **request: Any) -> Iterator["httpx.Response"]:
        given = {name: value for name, value in request.pop("params", {}).items() if value is not None}
        call = self._over_http if self.remote else self._in_process
        with call(method, path, params=given or None, **request) as answer:
            if not stream or not answer.is_success:
                answer.read()
            self._check(path, answer)
            yield answer

    @contextmanager
    def _over_http(
        self, method: str, path: str, *, seconds: float = _READ_SECONDS, **request: Any
    ) -> Iterator["httpx.Response"]:
        import httpx

        headers = request.pop("headers", {}) | ({"Authorization": f"Bearer {self.token}"} if self.token else {})
        timeout = httpx.Timeout(_CONNECT_SECONDS, read=seconds, write=seconds)
        try:
            with (
                httpx.Client(timeout=timeout) as http,
                http.stream(method, f"{self.address}{path}", headers=headers, **request) as answer,
            ):
                yield answer
        except httpx.TransportError as error:
            reason = str(error) or type(error).__name__
            fix = "Check the address, and that the server is running."
            raise Unreachable(VARIABLE, self.address, f"did not answer: {reason}.", fix) from None

    @contextmanager
    def _in_process(self, method: str, path: str, *, seconds: float = 0.0, **request: Any) -> Iterator[Any]:  # noqa: ARG002
        from app.cli.in_process import answered

        if self.database:
            _prepare(changes=method != "GET")
        with answered(method, path, **request) as answer:
            yield answer

    def _check(self, path: str, answer: "httpx.Response") -> None:
        """Raises ServerError, with the server's problems, for every answer but success."""
        if answer.is_success:
            return
        if answer.status_code == 401:
            message = "is not accepted by the server." if self.token else "is not set, and the server needs a token."
            fix = "Set it to a token of that server: `lathe user add NAME` or `lathe token` prints one there."
            raise ServerError(TOKEN, None, message, fix)
        if answer.is_redirect:
            place = answer.headers.get("location", "")
            raise ServerError(VARIABLE, self.address, f"redirects to {place}.", "Set it to the server's final address.")
        problems = _problems(self._json(answer))
        if answer.status_code == 405 or problems[0].field == "path":
            message = f"has no {path}: it runs another version of Lathe."
            raise ServerError(VARIABLE, self.address, message, "Install the same version here and there.")
        first, *others = problems
        raise ServerError(first.field, first.value, first.message, first.fix, *others)

    def _json(self, answer: "httpx.Response") -> Any:
        try:
            value = answer.json()
            if answer.is_success or "error" in value:
                return value
        except (ValueError, TypeError):
            pass
        message = f"answered with status {answer.status_code} and not as Lathe does."
        raise ServerError(VARIABLE, self.address, message, "Check the address, and the proxy before the server.")


def connect(*, database: bool = True) -> Client:
    """The client for LATHE_SERVER, or for this machine; `database` as in `Client`.

    Raises:
        ServerError: the address is invalid, or the token would be sent unencrypted over a network.
    """
    from training.addresses import is_loopback

    address = os.environ.get(VARIABLE, "").strip().rstrip("/")
    if not address:
        return Client(database=database)
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        fix = "Give https://HOST or https://HOST:PORT."
        raise ServerError(VARIABLE, address, "is not the address of a server.", fix)
    token = os.environ.get(TOKEN, "").strip()
    if token and parts.scheme == "http" and not is_loopback(parts.hostname) and os.environ.get(INSECURE) != "1":
        fix = f"Use https, or set {INSECURE}=1 if the network is trusted."
        raise ServerError(VARIABLE, address, f"would receive {TOKEN} unencrypted.", fix)
    return Client(address, token)


def check_here(name: str) -> None:
    """Checks, for a command that works on the machine of the installation only, that no server is chosen.

    Raises:
        ServerError: one is.
    """
    if server := os.environ.get(VARIABLE):
        message = f"`{name}` works on the machine of the installation only."
        raise ServerError(VARIABLE, server, message, f"Run it there, or unset {VARIABLE}.")


def path_of(kind: str, name: str, rest: str = "") -> str:
    """The path of a run, a sweep, ... (`kind`: "runs", "sweeps", ...) by its id or name.

    Raises:
        NotFound: it cannot be an id or name, and would be another path.
    """
    if name in ("", ".", "..") or ("/" in name and kind != MACHINES):
        raise NotFound(kind.removesuffix("s"), name, "does not exist.", "Give its id, or the first characters of it.")
    return f"/api/{kind}/{quote(name, safe='', errors='replace')}{rest}"


def ready() -> None:
    """Creates the tables of an empty database; `lathe up` upgrades existing tables.

    Raises:
        SettingsError: the data folder cannot be created.
        NewerDatabase: a newer version of Lathe has changed the tables.
        OperationalError: the database is unreachable.
    """
    from worker.store import database

    if not database.has_tables():
        database.migrate()


def _prepare(*, changes: bool) -> None:
    ready()
    if changes:
        from worker.settings import get_settings

        get_settings().make_folders()  # they can be missing here if the database is on another machine


def _problems(answer: Any) -> list[Problem]:
    listed = answer.get("problems") or [answer["error"]]
    return [Problem(one["field"], one["value"], one["message"], one["fix"], one.get("changes") or {}) for one in listed]
